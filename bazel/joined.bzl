"""Several source files as one object.

joined_sources() generates files that each include several of the given ones. Parsing headers and
instantiating templates, which take most of the compile time, then happen once per generated file.
"""

_FILES = 6  # per object at most: a change in one of them recompiles the others

def _write(ctx):
    ctx.actions.write(
        ctx.outputs.out,
        "".join(["#include \"%s\"\n" % file.short_path for file in ctx.files.srcs]),
    )

_joined = rule(
    implementation = _write,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "out": attr.output(mandatory = True),
    },
)

def joined_sources(name, srcs, apart = []):
    """Returns the files to compile instead of srcs, which must be textual headers of the target.

    Args:
      name: of the library or program; the prefix of the generated files.
      srcs: .cc files of this package.
      apart: those of srcs that are compiled separately.
    """
    together = [file for file in srcs if file not in apart]
    objects = (len(together) + _FILES - 1) // _FILES
    outs = []
    for i in range(objects):
        # Sizes of groups differ by at most one.
        group = together[i * len(together) // objects:(i + 1) * len(together) // objects]
        out = "%s_%d.joined.cc" % (name, i + 1)
        _joined(
            name = "%s_%d_joined" % (name, i + 1),
            srcs = group,
            out = out,
            visibility = ["//visibility:private"],
        )
        outs.append(out)
    return outs + [file for file in srcs if file in apart]

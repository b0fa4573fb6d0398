"""Several source files as one object.

joined_sources() generates files that each include several of the given ones. Parsing headers and
instantiating templates, which take most of the compile time, then happen once per generated file.
"""

_FILES = 6  # per object at most: a change in one of them recompiles the others

def _write(ctx):
    lines = []
    for i, file in enumerate(ctx.files.srcs):
        lines += ["#define %s %s_%d" % (name, name, i + 1) for name in ctx.attr.rename]
        lines.append("#include \"%s\"" % file.short_path)
        lines += ["#undef " + name for name in ctx.attr.rename]
    ctx.actions.write(ctx.outputs.out, "\n".join(lines) + "\n")

_joined = rule(
    implementation = _write,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "out": attr.output(mandatory = True),
        "rename": attr.string_list(),
    },
)

def joined_sources(name, srcs, apart = [], rename = []):
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
            rename = rename,
            visibility = ["//visibility:private"],
        )
        outs.append(out)
    return outs + [file for file in srcs if file in apart]

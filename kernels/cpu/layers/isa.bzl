"""Kernels that are compiled once for each instruction set, in namespace NIBBLE_ISA."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//bazel:joined.bzl", "joined_sources")

_AVX512 = [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mfma",
    "-mprefer-vector-width=512",
]

_FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": _AVX512,
    # Only matmuls and what feeds them have kernels for these.
    "avx512bf16": _AVX512 + ["-mavx512bf16"],
    "amx": _AVX512 + ["-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}

# GCC 12 warns about its own AVX-512 headers and about vectors in internal signatures.
_QUIET = [
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-psabi",
    # The files are joined.
    "-Wno-subobject-linkage",
]

ISAS = ["baseline", "avx2", "avx512"]

def isa_kernels(name, srcs, deps, more = {}, **kwargs):
    """The kernels of a folder: one library for each instruction set, and one that has them all.

    Args:
      name: of all; those of one set have its name behind it.
      srcs: define `<Something>::NIBBLE_ISA` tables, for each of ISAS.
      deps: with the headers that declare them.
      more: instruction set → further files for it alone.
      **kwargs: of all of them.
    """
    sources = {isa: srcs for isa in ISAS}
    for isa, files in more.items():
        sources[isa] = sources.get(isa, []) + files
    for isa, files in sources.items():
        cc_library(
            name = "%s_%s" % (name, isa),
            srcs = joined_sources("%s_%s" % (name, isa), files),
            # Contraction: see vec.h. Order of evaluation stays as written.
            copts = [
                "-O3",
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-DNIBBLE_ISA=" + isa,
            ] + _QUIET + _FLAGS[isa],
            textual_hdrs = files,
            deps = deps,
            **kwargs
        )
    cc_library(
        name = name,
        deps = [":%s_%s" % (name, isa) for isa in sources],
        **kwargs
    )

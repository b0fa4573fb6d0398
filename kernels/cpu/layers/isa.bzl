"""Kernels that are compiled once for each instruction set, in namespace NIBBLE_ISA."""

load("@rules_cc//cc:defs.bzl", "cc_library")

_FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
    ],
}

# GCC 12 warns about its own AVX-512 headers and about vectors in internal signatures.
_QUIET = [
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-psabi",
]

ISAS = _FLAGS.keys()

def isa_copts(isa):
    # Contraction: see vec.h. Order of evaluation stays as written.
    return ["-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-DNIBBLE_ISA=" + isa] + \
           _QUIET + _FLAGS[isa]

def isa_library(name, srcs, hdrs, deps = [], **kwargs):
    """srcs define `k<Something>` tables in namespace NIBBLE_ISA; hdrs declare them for every set."""
    for isa in ISAS:
        cc_library(
            name = "%s_%s" % (name, isa),
            srcs = srcs,
            hdrs = hdrs,
            copts = isa_copts(isa),
            textual_hdrs = [
                "vec.h",
                "vec_lanes.h",
                "vec_loop.h",
            ],
            deps = deps,
            visibility = ["//visibility:private"],
        )
    cc_library(
        name = name,
        hdrs = hdrs,
        deps = [":%s_%s" % (name, isa) for isa in ISAS] + deps,
        **kwargs
    )

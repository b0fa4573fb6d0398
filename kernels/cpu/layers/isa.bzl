"""Layer kernels, compiled once for each instruction set."""

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

def isa_library(name, srcs, hdrs, deps = [], **kwargs):
    """srcs define `k<Something>` tables in namespace NIBBLE_ISA; hdrs declare them for every set."""
    for isa, flags in _FLAGS.items():
        cc_library(
            name = "%s_%s" % (name, isa),
            srcs = srcs,
            hdrs = hdrs,
            # Contraction: see vec.h. Order of evaluation stays as written.
            copts = ["-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-DNIBBLE_ISA=" + isa] +
                    _QUIET + flags,
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
        deps = [":%s_%s" % (name, isa) for isa in _FLAGS] + deps,
        **kwargs
    )

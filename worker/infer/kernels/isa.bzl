"""Inference kernels, compiled once for each instruction set as those of training are."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")

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

# The vector headers come with the products' target.
_DEPS = [
    "//kernels/cpu/layers:layer_isa",
    "//kernels/cpu/layers:panel_gemm",
    "//kernels/tensor:matrix",
]

def infer_kernels(name):
    """<name>_kernels of <name>_kernels.{h,cc}, and its test."""
    for isa, flags in _FLAGS.items():
        cc_library(
            name = "%s_%s" % (name, isa),
            srcs = [name + "_kernels.cc"],
            hdrs = [name + "_kernels.h"],
            # Contraction: see kernels/cpu/layers/vec.h. Order of evaluation stays as written.
            copts = ["-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-DNIBBLE_ISA=" + isa] +
                    _QUIET + flags,
            deps = _DEPS,
            visibility = ["//visibility:private"],
        )
    cc_library(
        name = name + "_kernels",
        hdrs = [name + "_kernels.h"],
        deps = [":%s_%s" % (name, isa) for isa in _FLAGS] + ["//kernels/cpu/layers:layer_isa"],
    )
    cc_test(
        name = name + "_kernels_test",
        size = "small",
        srcs = [name + "_kernels_test.cc"],
        deps = [
            ":%s_kernels" % name,
            "//kernels/formats",
            "@system//:gtest_main",
        ],
    )

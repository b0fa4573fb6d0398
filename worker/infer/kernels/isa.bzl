"""Inference kernels, compiled once for each instruction set as those of training are."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")
load("//kernels/cpu/layers:isa.bzl", "ISAS", "isa_copts")

# The vector headers come with the products' target.
_DEPS = [
    "//kernels/cpu/layers:layer_isa",
    "//kernels/cpu/layers:panel_gemm",
    "//kernels/tensor:matrix",
]

def infer_kernels(name):
    """<name>_kernels of <name>_kernels.{h,cc}, and its test."""
    for isa in ISAS:
        cc_library(
            name = "%s_%s" % (name, isa),
            srcs = [name + "_kernels.cc"],
            hdrs = [name + "_kernels.h"],
            copts = isa_copts(isa),
            deps = _DEPS,
            visibility = ["//visibility:private"],
        )
    cc_library(
        name = name + "_kernels",
        hdrs = [name + "_kernels.h"],
        deps = [":%s_%s" % (name, isa) for isa in ISAS] + ["//kernels/cpu/layers:layer_isa"],
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

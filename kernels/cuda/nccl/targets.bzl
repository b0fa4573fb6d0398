"""Ranks on cards, connected by NCCL: only where a CUDA toolkit and NCCL's header were found."""

load("@cuda//:defs.bzl", "NCCL_AVAILABLE")
load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")
load("//third_party/cuda:cuda.bzl", "cuda_library")

_KERNEL_DEPS = [
    "//kernels/cuda:kernel_headers",
    "//kernels/formats",
    "//kernels/ops",
]

def _group(name, kernels, backend, srcs = [], testonly = False):
    cc_library(
        name = name,
        testonly = testonly,
        srcs = srcs + [
            "nccl_communicator.cc",
            "nccl_group.cc",
            "nccl_library.cc",
        ],
        hdrs = [
            "copy_exchange.h",
            "copy_offer.h",
            "nccl_communicator.h",
            "nccl_group.h",
            "nccl_library.h",
            "peer_copies.h",
            "piece_plan.h",
        ],
        # NCCL is loaded when ranks are connected: nothing links it, only its header is needed.
        deps = [
            backend,
            kernels,
            "//common",
            "//kernels/cuda:shared_library",
            "//kernels/ops",
            "@cuda//:nccl_headers",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _emulation():
    """The same .cu file as C++, on the host, with a NCCL in C++."""
    native.genrule(
        name = "rank_sum_kernels_emulated",
        outs = ["rank_sum_kernels_emulated.cc"],
        cmd = ("printf '#include \"kernels/cuda/gpu_emulation.h\"\\n" +
               "#include \"kernels/cuda/nccl/rank_sum_kernels.cu\"\\n' > $@"),
    )
    cc_library(
        name = "emulated_kernels",
        testonly = True,
        srcs = ["rank_sum_kernels_emulated.cc"],
        hdrs = ["rank_sum_kernels.h"],
        copts = ["-Wno-unknown-pragmas"],
        local_defines = ["NIBBLE_GPU_EMULATION"],
        textual_hdrs = ["rank_sum_kernels.cu"],
        deps = _KERNEL_DEPS + [
            "//kernels/cuda:emulated_kernels",
            "@cuda//:runtime_headers",
        ],
    )
    _group("emulated_group", ":emulated_kernels", "//kernels/cuda:emulated_backend", testonly = True)
    cc_test(
        name = "emulated_nccl_test",
        size = "medium",
        srcs = [
            "emulated_nccl_test.cc",
            "fake_nccl.cc",
            "fake_nccl.h",
            "nccl_library_test.cc",
        ],
        # One host thread that switches stacks, which the sanitizers do not support.
        tags = ["fibers"],
        deps = [
            ":emulated_group",
            ":emulated_kernels",
            "//kernels/cuda:emulated_backend",
            "@cuda//:nccl_headers",
            "@cuda//:runtime_headers",
            "@system//:gmock",
            "@system//:gtest_main",
        ],
    )

    cc_test(
        name = "emulated_copies_test",
        size = "medium",
        srcs = [
            "copy_exchange.h",
            "copy_offer.h",
            "emulated_copies_test.cc",
            "peer_copies.cc",
            "peer_copies.h",
        ],
        tags = ["fibers"],
        deps = [
            "//common",
            "//kernels/cuda:emulated_backend",
            "@cuda//:runtime_headers",
            "@system//:absl",
            "@system//:gmock",
            "@system//:gtest_main",
        ],
    )

def nccl_targets():
    if not NCCL_AVAILABLE:
        return
    cuda_library(
        name = "kernels",
        srcs = ["rank_sum_kernels.cu"],
        hdrs = ["rank_sum_kernels.h"],
        deps = _KERNEL_DEPS,
    )
    # In the emulation, tests bring streams of their own.
    _group("group", ":kernels", "//kernels/cuda:cuda_backend", srcs = ["peer_copies.cc"])
    _emulation()

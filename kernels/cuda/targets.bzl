"""The CUDA targets, which exist only where a toolkit was found."""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("//third_party/cuda:cuda.bzl", "cuda_library")

_KERNELS = [
    "amax_kernels",
    "byte_lines",
    "byte_wide",
    "general_amax",
    "general_e2m1",
    "general_e4m3",
    "general_e5m2",
    "mx_bf16_nearest",
    "mx_bf16_stochastic",
    "mx_f32_nearest",
    "mx_f32_stochastic",
    "quantize_naive",
    "tile_bf16_nearest",
    "tile_bf16_stochastic",
    "tile_f32_nearest",
    "tile_f32_stochastic",
]

def _backend(name, kernels):
    cc_library(
        name = name,
        srcs = [
            "byte_launch.cc",
            "cuda_backend.cc",
            "cuda_memory.cc",
            "cuda_queue.cc",
            "tile_launch.cc",
        ],
        hdrs = [
            "cuda_backend.h",
            "cuda_memory.h",
            "cuda_queue.h",
        ],
        deps = [
            ":kernel_headers",
            kernels,
            "//common",
            "//kernels/ops",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _cases(name, backend):
    cc_library(
        name = name,
        testonly = True,
        srcs = ["check_cases.cc"],
        hdrs = ["check_cases.h"],
        deps = [
            ":check_data",
            backend,
            "//kernels/cpu",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _emulation():
    """The same .cu files as C++, on the host."""
    for kernel in _KERNELS:
        native.genrule(
            name = kernel + "_emulated",
            outs = [kernel + "_emulated.cc"],
            cmd = ("printf '#include \"kernels/cuda/gpu_emulation.h\"\\n" +
                   "#include \"kernels/cuda/%s.cu\"\\n' > $@" % kernel),
        )
    cc_library(
        name = "emulated_kernels",
        testonly = True,
        srcs = ["gpu_emulation.cc"] + [kernel + "_emulated.cc" for kernel in _KERNELS],
        hdrs = ["gpu_emulation.h"],
        copts = ["-Wno-unknown-pragmas"],
        local_defines = ["NIBBLE_GPU_EMULATION"],
        textual_hdrs = [kernel + ".cu" for kernel in _KERNELS],
        deps = [
            ":kernel_headers",
            "@cuda//:runtime_headers",
        ],
    )
    cc_library(
        name = "emulated_backend",
        testonly = True,
        srcs = [
            "byte_launch.cc",
            "cuda_backend.cc",
            "cuda_memory.cc",
            "cuda_queue.cc",
            "tile_launch.cc",
        ],
        hdrs = [
            "cuda_backend.h",
            "cuda_memory.h",
            "cuda_queue.h",
        ],
        deps = [
            ":emulated_kernels",
            ":kernel_headers",
            "//common",
            "//kernels/ops",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )
    _cases("emulated_cases", ":emulated_backend")
    cc_test(
        name = "emulated_backend_test",
        size = "medium",
        srcs = ["emulated_backend_test.cc"],
        # One host thread that switches stacks, which the sanitizers do not support.
        tags = ["fibers"],
        deps = [
            ":emulated_backend",
            ":emulated_cases",
            "//kernels/cpu",
            "@cuda//:runtime_headers",
            "@system//:gtest_main",
        ],
    )

def cuda_targets():
    if not CUDA_AVAILABLE:
        return
    cuda_library(
        name = "kernels",
        srcs = [kernel + ".cu" for kernel in _KERNELS],
        deps = [":kernel_headers"],
    )
    _backend("cuda_backend", ":kernels")
    cuda_library(
        name = "instruction_check",
        srcs = ["instruction_check.cu"],
        deps = [":kernel_headers"],
    )
    _cases("check_cases", ":cuda_backend")
    cc_binary(
        name = "gpu_check",
        testonly = True,
        srcs = [
            "bench.cc",
            "bench.h",
            "gpu_check.cc",
            "vector_check.cc",
            "vector_check.h",
        ],
        deps = [
            ":check_cases",
            ":check_data",
            ":cuda_backend",
            ":instruction_check",
            ":kernel_headers",
            "//kernels/cpu",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )
    _emulation()

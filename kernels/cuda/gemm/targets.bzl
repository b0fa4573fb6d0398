"""The targets of the CUDA GEMM engine, which exist only where a toolkit was found."""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("//third_party/cuda:cuda.bzl", "cuda_library")

_KERNELS = [
    "expand_kernels",
    "fingerprint_kernels",
    "finish_kernels",
    "scale_kernels",
    "sliced_kernel",
]

_ENGINE = [
    "cublas_lt",
    "cuda_gemm",
    "gemm_operands",
    "gemm_stream",
    "lt_engine",
    "lt_matmul",
    "lt_problem",
    "lt_search",
]

def _engine(name, kernels, backend, testonly = False):
    cc_library(
        name = name,
        testonly = testonly,
        srcs = [part + ".cc" for part in _ENGINE],
        hdrs = [part + ".h" for part in _ENGINE] + ["operand_path.h"],
        # cuBLASLt is loaded when an engine is made: nothing links it, only its header is needed.
        deps = [
            ":kernel_headers",
            backend,
            kernels,
            "//common",
            "//kernels/cuda:shared_library",
            "//kernels/gemm",
            "//recipe",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _cases(name, engine):
    cc_library(
        name = name,
        testonly = True,
        srcs = [
            "gemm_case_lists.cc",
            "gemm_cases.cc",
        ],
        hdrs = ["gemm_cases.h"],
        deps = [
            engine,
            "//kernels/cpu",
            "//kernels/gemm",
            "//kernels/gemm:testing",
            "//recipe",
            "//recipe:testing",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _emulation():
    """The same .cu files as C++, on the host, with a cuBLASLt in C++."""
    for kernel in _KERNELS:
        native.genrule(
            name = kernel + "_emulated",
            outs = [kernel + "_emulated.cc"],
            cmd = ("printf '#include \"kernels/cuda/gpu_emulation.h\"\\n" +
                   "#include \"kernels/cuda/gemm/%s.cu\"\\n' > $@" % kernel),
        )
    cc_library(
        name = "emulated_kernels",
        testonly = True,
        srcs = ["emulated_runtime.cc"] + [kernel + "_emulated.cc" for kernel in _KERNELS],
        hdrs = ["emulated_runtime.h"],
        copts = ["-Wno-unknown-pragmas"],
        local_defines = ["NIBBLE_GPU_EMULATION"],
        textual_hdrs = [kernel + ".cu" for kernel in _KERNELS],
        deps = [
            ":kernel_headers",
            "//kernels/cuda:emulated_kernels",
            "@cuda//:runtime_headers",
        ],
    )
    _engine("emulated_gemm", ":emulated_kernels", "//kernels/cuda:emulated_backend", testonly = True)
    _cases("emulated_cases", ":emulated_gemm")
    cc_test(
        name = "emulated_gemm_test",
        size = "large",
        srcs = [
            "emulated_gemm_test.cc",
            "fake_cublas_lt.cc",
            "fake_cublas_lt.h",
        ],
        shard_count = 4,
        # One host thread that switches stacks, which the sanitizers do not support.
        tags = ["fibers"],
        deps = [
            ":emulated_cases",
            ":emulated_gemm",
            ":emulated_kernels",
            "//kernels/gemm:testing",
            "@cuda//:runtime_headers",
            "@system//:gmock",
            "@system//:gtest_main",
        ],
    )

def cuda_gemm_targets():
    if not CUDA_AVAILABLE:
        return
    cuda_library(
        name = "kernels",
        srcs = [kernel + ".cu" for kernel in _KERNELS],
        deps = [":kernel_headers"],
    )
    _engine("gemm", ":kernels", "//kernels/cuda:cuda_backend")
    _cases("gemm_cases", ":gemm")
    cc_binary(
        name = "gemm_check",
        testonly = True,
        srcs = [
            "gemm_check.cc",
            "gemm_check.h",
            "gemm_check_main.cc",
            "gemm_time.cc",
        ],
        deps = [
            ":gemm",
            ":gemm_cases",
            "//common",
            "//kernels/cuda:check_data",
            "//kernels/cuda:cuda_backend",
            "//kernels/cuda/layers:check",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )
    _emulation()

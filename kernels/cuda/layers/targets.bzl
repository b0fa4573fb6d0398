"""The operations of layers on a CUDA card, which exist only where a toolkit was found."""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("//third_party/cuda:cuda.bzl", "cuda_library")

# Kernels in which no multiplication and addition are fused.
_EXACT = [
    "exact_kernels.cu",
    "optimizer_kernels.cu",
    "step_kernels.cu",
]

_OPS = ["cuda_*.h"]
_CHECKS = ["*_check.h", "*_check_data.h", "check_*.h"]

_DEPS = [
    "//kernels/cuda:kernel_headers",
    "//kernels/formats",
    "//kernels/ops",
    "//kernels/tensor",
]

def _ops(name, kernels, backend, testonly = False):
    cc_library(
        name = name,
        testonly = testonly,
        srcs = native.glob(["cuda_*_ops.cc"]),
        hdrs = native.glob(_OPS),
        deps = _DEPS + kernels + [
            backend,
            "//common",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _tensor_map(name, testonly = False, copts = []):
    cc_library(
        name = name,
        testonly = testonly,
        srcs = ["tensor_map.cc"],
        hdrs = ["tensor_map.h"],
        copts = copts,
        textual_hdrs = native.glob(["*.cuh", "*_emulation.h"]),
        deps = [
            "//kernels/cuda:kernel_headers",
            "@cuda//:runtime_headers",
        ] + (["//kernels/cuda:emulated_kernels"] if testonly else []),
    )

def _checks(suffix, ops, backend):
    cc_library(
        name = "check" + suffix,
        testonly = True,
        srcs = native.glob(["*_check.cc", "*_time.cc"]),
        hdrs = native.glob(_CHECKS),
        deps = [
            backend,
            ops,
            "//common",
            "//kernels/cpu/layers",
            "//kernels/cuda:check_data",
            "//kernels/tensor",
            "@cuda//:runtime_headers",
            "@system//:absl",
        ],
    )

def _emulation():
    """The same .cu files as C++, on the host: checked in CI."""
    kernels = native.glob(["*.cu"])
    for kernel in kernels:
        native.genrule(
            name = kernel[:-len(".cu")] + "_emulated",
            outs = [kernel[:-len(".cu")] + "_emulated.cc"],
            cmd = ("printf '#include \"kernels/cuda/gpu_emulation.h\"\\n" +
                   "#include \"kernels/cuda/layers/%s\"\\n' > $@" % kernel),
        )
    cc_library(
        name = "emulated_kernels",
        testonly = True,
        srcs = [kernel[:-len(".cu")] + "_emulated.cc" for kernel in kernels],
        hdrs = native.glob(["*.h"], exclude = _OPS + _CHECKS),
        copts = ["-Wno-unknown-pragmas", "-Wno-psabi"],
        local_defines = ["NIBBLE_GPU_EMULATION"],
        textual_hdrs = native.glob(["*.cuh"]) + kernels,
        deps = _DEPS + [
            ":emulated_tensor_map",
            "//kernels/cuda:emulated_kernels",
            "@cuda//:runtime_headers",
        ],
    )
    backend = "//kernels/cuda:emulated_backend"
    # tensor_map.cc describes tensors to the bulk copies of the emulation.
    emulated = ["-include", "kernels/cuda/gpu_emulation.h", "-DNIBBLE_GPU_EMULATION"]
    _tensor_map("emulated_tensor_map", testonly = True, copts = emulated)
    _ops("emulated_layers", [":emulated_kernels"], backend, testonly = True)
    _checks("_emulated", ":emulated_layers", backend)
    for main in native.glob(["*_check_main.cc"]):
        cc_test(
            name = main[:-len("_main.cc")] + "_emulated_test",
            size = "large",
            srcs = [main],
            args = ["--small"],
            # One host thread that switches stacks, which the sanitizers do not support.
            tags = ["fibers"],
            deps = [
                ":check_emulated",
                backend,
                "@cuda//:runtime_headers",
                "@system//:absl",
            ],
        )

def cuda_layer_targets():
    cc_test(
        name = "attention_dq_buffers_test",
        size = "small",
        srcs = [
            "attention_dq_buffers.h",
            "attention_dq_buffers_test.cc",
        ],
        deps = [
            "@system//:gtest_main",
        ],
    )
    if not CUDA_AVAILABLE:
        return
    headers = native.glob(["*.h"], exclude = _OPS + _CHECKS)
    textual = native.glob(["*.cuh"])
    cuda_library(
        name = "exact_kernels",
        srcs = native.glob(_EXACT),
        hdrs = headers,
        textual = textual,
        deps = _DEPS,
    )
    cuda_library(
        name = "kernels",
        srcs = native.glob(["*.cu"], exclude = _EXACT),
        hdrs = headers,
        textual = textual,
        contracts = True,
        local_memory = True,
        deps = _DEPS + [":tensor_map"],
    )
    _tensor_map("tensor_map")
    backend = "//kernels/cuda:cuda_backend"
    _ops("layers", [":exact_kernels", ":kernels"], backend)
    _checks("", ":layers", backend)
    for main in native.glob(["*_check_main.cc"]):
        cc_binary(
            name = main[:-len("_main.cc")],
            testonly = True,
            srcs = [main],
            deps = [
                ":check",
                backend,
                "@cuda//:runtime_headers",
                "@system//:absl",
            ],
        )
    _emulation()

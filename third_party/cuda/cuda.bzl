"""`cuda_library`: .cu files compiled by nvcc for every supported GPU target, linked like any cc_library.

`if_cuda([...])` is the list if a CUDA toolkit was found, otherwise []; `if_nccl([...])` also needs nccl.h.
"""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDA_LIB", "NCCL_AVAILABLE", "NVCC")
load("@rules_cc//cc:defs.bzl", "cc_library")

# //third_party/cuda:targets: what kernels are compiled for, as nvcc writes it: 90a is Hopper, which emulates NVFP4; 100a
# is Blackwell, with FP4 tensor cores. bundle.sh takes both; a build for tests takes one, in half the time.
_Targets = provider(fields = ["names"])

def _cuda_targets_impl(ctx):
    return _Targets(names = ctx.build_setting_value)

cuda_targets = rule(
    implementation = _cuda_targets_impl,
    build_setting = config.string_list(flag = True),
)

# No flush to zero, and IEEE division and square roots.
_NUMERICS = ["-ftz=false", "-prec-div=true", "-prec-sqrt=true"]

def if_cuda(values):
    return values if CUDA_AVAILABLE else []

def if_nccl(values):
    return values if NCCL_AVAILABLE else []

def _nvcc_impl(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    defines = depset(transitive = [c.defines for c in contexts]).to_list()
    objects = []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file(ctx.label.name + "/" + src.basename[:-len(".cu")] + ".pic.o")
        args = ctx.actions.args()
        args.add_all(["-std=c++20", "-O3", "-lineinfo", "-c", src, "-o", out, "-I", "."])
        args.add_all(_NUMERICS)
        args.add("-fmad=true" if ctx.attr.contracts else "-fmad=false")
        args.add_all([a for t in ctx.attr._targets[_Targets].names for a in ["-gencode", "arch=compute_%s,code=sm_%s" % (t, t)]])
        args.add_all(["-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror,-ffp-contract=off", "-Werror", "all-warnings"])
        if not ctx.attr.local_memory:
            args.add_all(["-Xptxas", "-warn-spills,-warn-lmem-usage"])
        args.add_all(defines, before_each = "-D")
        ctx.actions.run(
            executable = NVCC,
            arguments = [args],
            inputs = depset([src], transitive = [headers]),
            outputs = [out],
            mnemonic = "Nvcc",
            progress_message = "Compiling CUDA " + src.short_path,
            use_default_shell_env = True,
        )
        objects.append(out)
    return [DefaultInfo(files = depset(objects))]

_nvcc = rule(
    implementation = _nvcc_impl,
    attrs = {
        "contracts": attr.bool(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "local_memory": attr.bool(),
        "srcs": attr.label_list(allow_files = [".cu"]),
        "_targets": attr.label(default = "//third_party/cuda:targets", providers = [_Targets]),
    },
)

def cuda_library(name, srcs, hdrs = [], textual = [], deps = [], contracts = False, local_memory = False, visibility = None):
    """A library of .cu files. It does not exist without a toolkit: depend on it through if_cuda().

    Args:
      name: of the library.
      srcs: .cu files.
      hdrs: headers for its users.
      textual: headers for its .cu files.
      deps: C++ libraries.
      contracts: multiplications and additions may be fused. Not where results are bit-identical to the CPU's.
      local_memory: kernels may use local memory, for spilled registers too; otherwise that is an error.
      visibility: as usual.
    """
    if not CUDA_AVAILABLE:
        return
    _nvcc(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs + textual,
        deps = deps,
        contracts = contracts,
        local_memory = local_memory,
    )
    cc_library(
        name = name,
        srcs = [":" + name + "_objects"],
        hdrs = hdrs,
        linkopts = ["-L" + CUDA_LIB, "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
        visibility = visibility,
        deps = deps + ["@cuda//:runtime_headers"],
    )

"""Finds the CUDA toolkit once, as `@cuda//:defs.bzl`: CUDA_AVAILABLE, NVCC, CUDA_HOME, CUDA_INCLUDE, CUDA_LIB, and
NCCL_AVAILABLE if there is nccl.h, in the toolkit or in /usr/include (Debian: libnccl-dev).

Searched in CUDA_HOME, beside the nvcc on PATH, and in /usr/local/cuda. NIBBLE_CUDA=0 builds without it.
Without a toolkit everything except CUDA code is built; test.sh prints a line about it.
"""

def _find(ctx):
    if ctx.os.environ.get("NIBBLE_CUDA") == "0":
        return None
    candidates = []
    if ctx.os.environ.get("CUDA_HOME"):
        candidates.append(ctx.path(ctx.os.environ["CUDA_HOME"]))
    nvcc = ctx.which("nvcc")
    if nvcc:
        candidates.append(nvcc.realpath.dirname.dirname)
    candidates.append(ctx.path("/usr/local/cuda"))
    for home in candidates:
        if home.get_child("bin").get_child("nvcc").exists:
            return home
    return None

def _impl(ctx):
    home = _find(ctx)
    values = {
        "CUDA_AVAILABLE": False,
        "CUDA_HOME": "",
        "CUDA_INCLUDE": "",
        "CUDA_LIB": "",
        "NCCL_AVAILABLE": False,
        "NVCC": "",
    }
    if home:
        target = home.get_child("targets").get_child("x86_64-linux")
        base = target if target.exists else home
        lib = base.get_child("lib")
        values = {
            "CUDA_AVAILABLE": True,
            "CUDA_HOME": str(home),
            "CUDA_INCLUDE": str(base.get_child("include")),
            "CUDA_LIB": str(lib if lib.exists else home.get_child("lib64")),
            "NCCL_AVAILABLE": False,
            "NVCC": str(home.get_child("bin").get_child("nvcc")),
        }
    build = 'package(default_visibility = ["//visibility:public"])\n'
    if home:
        # Bazel refuses absolute include paths in C++ compiles, but accepts a link inside the repository.
        ctx.symlink(values["CUDA_INCLUDE"], "include")
        build += """cc_library(
    name = "runtime_headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"]),
    includes = ["include"],
)
"""
        for nccl in [base.get_child("include").get_child("nccl.h"), ctx.path("/usr/include/nccl.h")]:
            if nccl.exists and not values["NCCL_AVAILABLE"]:
                values["NCCL_AVAILABLE"] = True
                ctx.symlink(nccl, "nccl/nccl.h")
                build += """cc_library(
    name = "nccl_headers",
    hdrs = ["nccl/nccl.h"],
    includes = ["nccl"],
    deps = [":runtime_headers"],
)
"""
    ctx.file("BUILD", build)
    ctx.file("defs.bzl", "\n".join(["%s = %r" % (k, v) for k, v in sorted(values.items())]) + "\n")

cuda_toolkit = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HOME", "NIBBLE_CUDA", "PATH"],
    local = True,
)

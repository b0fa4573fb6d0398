"""Finds the CUDA toolkit once, as `@cuda//:defs.bzl`: CUDA_AVAILABLE, NVCC, CUDA_HOME, CUDA_INCLUDE, CUDA_LIB.

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
    values = {"CUDA_AVAILABLE": False, "CUDA_HOME": "", "NVCC": "", "CUDA_INCLUDE": "", "CUDA_LIB": ""}
    if home:
        target = home.get_child("targets").get_child("x86_64-linux")
        base = target if target.exists else home
        lib = base.get_child("lib")
        values = {
            "CUDA_AVAILABLE": True,
            "CUDA_HOME": str(home),
            "CUDA_INCLUDE": str(base.get_child("include")),
            "CUDA_LIB": str(lib if lib.exists else home.get_child("lib64")),
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
    ctx.file("BUILD", build)
    ctx.file("defs.bzl", "\n".join(["%s = %r" % (k, v) for k, v in sorted(values.items())]) + "\n")

cuda_toolkit = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HOME", "NIBBLE_CUDA", "PATH"],
    local = True,
)

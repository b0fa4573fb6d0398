"""Debian's libraries as one repository: `@system//:absl`, `@system//:gtest_main`, …

Flags come from pkg-config if the library has a .pc file. If a library is not installed, the fetch fails
and names the Debian package, before any compile.
"""

# A program loads only the libraries that it uses, not all that its rooms link.
_AS_NEEDED = ["-Wl,--as-needed"]

# target: (pkg-config modules, Debian package)
_PKG_CONFIG = {
    "absl": ("absl_status absl_statusor absl_strings absl_str_format absl_flat_hash_map absl_span " +
             "absl_synchronization absl_time absl_any_invocable absl_function_ref absl_cleanup", "libabsl-dev"),
    "benchmark": ("benchmark", "libbenchmark-dev"),
    "cli11": ("CLI11", "libcli11-dev"),
    "gmock": ("gmock", "libgmock-dev"),
    "gtest": ("gtest", "libgtest-dev"),
    "gtest_main": ("gmock gtest_main", "libgtest-dev libgmock-dev"),
    "grpc": ("grpc++ protobuf", "libgrpc++-dev"),
    "httplib": ("cpp-httplib", "libcpp-httplib-dev"),
    "nlohmann_json": ("nlohmann_json", "nlohmann-json3-dev"),
    "openssl": ("openssl", "libssl-dev"),
    "prometheus": ("prometheus-cpp-core", "prometheus-cpp-dev"),
    "protobuf": ("protobuf", "libprotobuf-dev"),
    "yaml_cpp": ("yaml-cpp", "libyaml-cpp-dev"),
    "zlib": ("zlib", "zlib1g-dev"),
    "zstd": ("libzstd", "libzstd-dev"),
}

# target: (header that must exist, link flags, Debian package)
_PLAIN = {
    "gloo": ("/usr/include/gloo/context.h", ["-lgloo"], "libgloo-dev"),
    "onednn": ("/usr/include/dnnl.h", ["-ldnnl", "-lgomp"], "libdnnl-dev"),
    "rocksdb": ("/usr/include/rocksdb/db.h", ["-lrocksdb"], "librocksdb-dev"),
    "sentencepiece": ("/usr/include/sentencepiece_processor.h", ["-lsentencepiece", "-lsentencepiece_train"], "libsentencepiece-dev"),
}

def _flags(ctx, modules, package):
    result = ctx.execute(["pkg-config", "--cflags", "--libs"] + modules.split(" "))
    if result.return_code != 0:
        fail("%s not found: install the Debian package %s (./test.sh does)\n%s" %
             (modules, package, result.stderr))
    return [f for f in result.stdout.strip().split(" ") if f]

def _impl(ctx):
    if not ctx.which("pkg-config"):
        fail("pkg-config not found: install the Debian package pkg-config (./test.sh does)")
    build = ['package(default_visibility = ["//visibility:public"])']
    for name, (modules, package) in _PKG_CONFIG.items():
        flags = _flags(ctx, modules, package)
        defines = [f[2:] for f in flags if f.startswith("-D") and not f.startswith("-DNOMINMAX")]
        links = [f for f in flags if f.startswith("-l") or f.startswith("-L") or f.startswith("-Wl")]
        build.append("cc_library(name = %r, defines = %r, linkopts = %r)" % (name, defines, _AS_NEEDED + links))
    for name, (header, links, package) in _PLAIN.items():
        if not ctx.path(header).exists:
            fail("%s not found: install the Debian package %s (./test.sh does)" % (header, package))
        build.append("cc_library(name = %r, linkopts = %r)" % (name, _AS_NEEDED + links))
    ctx.file("BUILD", "\n".join(build) + "\n")

system_libraries = repository_rule(implementation = _impl, local = True)

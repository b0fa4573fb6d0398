"""Messages and services from .proto files with the system's protoc and gRPC plugin.

Bazel's own proto rules would fetch or build protobuf; Debian's is there already. Headers are included
by their path from the root of the repository: "proto/nibble/v1/job.pb.h".
"""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//bazel:joined.bzl", "joined_sources")

# Static names that protoc gives to every file of messages.
_SAME_NAMES = [
    "file_default_instances",
    "schemas",
]

def nibble_proto(name, srcs, services = [], imports = [], deps = [], visibility = None):
    """Makes `name` (messages), `name`_descriptors (a descriptor set) and, with services, `name`_grpc.

    Args:
      name: of the library of messages.
      srcs: every .proto file; they may import one another.
      services: those of srcs that have services.
      imports: .proto files of other libraries that srcs import.
      deps: those libraries.
      visibility: of all of them.
    """
    messages = [src[:-len(".proto")] for src in srcs]
    grpc = [src[:-len(".proto")] for src in services]
    own = " ".join(["$(location %s)" % src for src in srcs])
    native.genrule(
        name = name + "_messages_gen",
        srcs = srcs + imports,
        outs = [m + ".pb.cc" for m in messages] + [m + ".pb.h" for m in messages],
        cmd = "protoc --proto_path=. --cpp_out=$(GENDIR) " + own,
        visibility = ["//visibility:private"],
    )
    native.genrule(
        name = name + "_descriptors",
        srcs = srcs + imports,
        outs = [name + ".binpb"],
        cmd = "protoc --proto_path=. --include_source_info --descriptor_set_out=$@ " + own,
        visibility = visibility,
    )
    cc_library(
        name = name,
        srcs = joined_sources(name, [m + ".pb.cc" for m in messages], rename = _SAME_NAMES),
        hdrs = [m + ".pb.h" for m in messages],
        textual_hdrs = [m + ".pb.cc" for m in messages],
        visibility = visibility,
        # Code refers to nothing in a file that has only services. Without its object the program
        # has no descriptors of its services, which reflection and the metrics by method need.
        alwayslink = True,
        deps = deps + ["@system//:protobuf"],
    )
    if not services:
        return
    native.genrule(
        name = name + "_services_gen",
        srcs = srcs + imports,
        outs = [m + ".grpc.pb.cc" for m in grpc] + [m + ".grpc.pb.h" for m in grpc],
        cmd = "protoc --proto_path=. --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin " +
              " ".join(["$(location %s)" % s for s in services]),
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name + "_grpc",
        srcs = joined_sources(name + "_grpc", [m + ".grpc.pb.cc" for m in grpc]),
        hdrs = [m + ".grpc.pb.h" for m in grpc],
        textual_hdrs = [m + ".grpc.pb.cc" for m in grpc],
        visibility = visibility,
        deps = [
            ":" + name,
            "@system//:grpc",
        ],
    )

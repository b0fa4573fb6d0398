"""Messages and services from .proto files with the system's protoc and gRPC plugin.

Bazel's own proto rules would fetch or build protobuf; Debian's is there already. Headers are included
by their path from the root of the repository: "proto/nibble/v1/job.pb.h".
"""

load("@rules_cc//cc:defs.bzl", "cc_library")

def nibble_proto(name, srcs, services = [], visibility = None):
    """Makes `name` (messages), `name`_grpc (services) and `name`_descriptors (a descriptor set).

    Args:
      name: of the library of messages.
      srcs: every .proto file; they may import one another.
      services: those of srcs that have services.
      visibility: of all three.
    """
    messages = [src[:-len(".proto")] for src in srcs]
    grpc = [src[:-len(".proto")] for src in services]
    native.genrule(
        name = name + "_messages_gen",
        srcs = srcs,
        outs = [m + ".pb.cc" for m in messages] + [m + ".pb.h" for m in messages],
        cmd = "protoc --proto_path=. --cpp_out=$(GENDIR) $(SRCS)",
        visibility = ["//visibility:private"],
    )
    native.genrule(
        name = name + "_services_gen",
        srcs = srcs,
        outs = [m + ".grpc.pb.cc" for m in grpc] + [m + ".grpc.pb.h" for m in grpc],
        cmd = "protoc --proto_path=. --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin " +
              " ".join(["$(location %s)" % s for s in services]),
        visibility = ["//visibility:private"],
    )
    native.genrule(
        name = name + "_descriptors",
        srcs = srcs,
        outs = [name + ".binpb"],
        cmd = "protoc --proto_path=. --include_source_info --descriptor_set_out=$@ $(SRCS)",
        visibility = visibility,
    )
    cc_library(
        name = name,
        srcs = [m + ".pb.cc" for m in messages],
        hdrs = [m + ".pb.h" for m in messages],
        visibility = visibility,
        deps = ["@system//:protobuf"],
    )
    cc_library(
        name = name + "_grpc",
        srcs = [m + ".grpc.pb.cc" for m in grpc],
        hdrs = [m + ".grpc.pb.h" for m in grpc],
        visibility = visibility,
        deps = [
            ":" + name,
            "@system//:grpc",
        ],
    )

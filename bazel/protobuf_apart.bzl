"""Programs that link both Protocol Buffers and SentencePiece.

Debian's libsentencepiece contains a Protocol Buffers of its own, another version, and exports it under
the same names. With libprotobuf.so in one process, the dynamic linker merges the two, and the process
crashes at its first message. So such a program links Protocol Buffers statically and exports none of it:
the archive comes before every shared library, neither its symbols nor those of the generated code are
exported, and libprotobuf.so, which is then unused, is not loaded.

    cc_binary(linkopts = PROTOBUF_APART, additional_linker_inputs = PROTOBUF_APART_INPUTS, …)

Tests need it too, with `linkstatic = True`, since otherwise each of their libraries would contain a copy.
//tests/client_remote checks the program.
"""

PROTOBUF_APART_INPUTS = ["//bazel:protobuf_apart.lds"]

PROTOBUF_APART = [
    "-Wl,--version-script=$(location //bazel:protobuf_apart.lds)",
    "-Wl,--exclude-libs,ALL",
    "-l:libprotobuf.a",
    "-lz",
    "-Wl,--as-needed",
]

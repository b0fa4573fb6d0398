"""Programs that hold both Protocol Buffers and SentencePiece.

Debian's libsentencepiece carries a Protocol Buffers of its own, another version, and exports it under
the same names. With libprotobuf.so in one process the two become one by the dynamic linker's rules, and
the process ends at its first message. So such a program holds its Protocol Buffers itself and shows it to
nobody: the archive comes before every shared library, neither it nor what the compiler made of its headers
is exported, and libprotobuf.so, which is then of no use, is not loaded.

    cc_binary(linkopts = PROTOBUF_APART, additional_linker_inputs = PROTOBUF_APART_INPUTS, …)

Tests likewise, with `linkstatic = True`: else every library of theirs would hold one. //tests/client_remote
checks that it is so.
"""

PROTOBUF_APART_INPUTS = ["//client:protobuf_apart.lds"]

PROTOBUF_APART = [
    "-Wl,--version-script=$(location //client:protobuf_apart.lds)",
    "-Wl,--exclude-libs,ALL",
    "-l:libprotobuf.a",
    "-lz",
    "-Wl,--as-needed",
]

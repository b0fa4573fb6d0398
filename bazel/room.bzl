"""A folder is a room: one library, one library of test helpers, one test program.

    nibble_room(
        name = "state",               # //server/state
        deps = [...],                 # what the room may depend on
        visibility = [...],           # who may depend on it
    )

makes, from the files of the folder:
    :state    *.h and *.cc, except the following
    :testing  testing.*, *_testing.*: helpers of the tests of this and of other rooms
    :tests    *_test.cc, in one program (`--test_filter=Suite.*` runs a part of it)

Programs (main.cc, *_main.cc) have separate targets.

Several .cc files are compiled as one object (joined.bzl), because parsing a file's headers takes longer
than compiling it. Names in unnamed namespaces must therefore be distinct within a room.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load(":joined.bzl", "joined_sources")

_TESTING = ["testing.cc", "testing.h", "*_testing.cc", "*_testing.h"]
_PROGRAMS = ["main.cc", "*_main.cc"]

# The compiler treats the included .cc files as headers, and warns about members of unnamed namespaces there.
_JOINED_COPTS = ["-Wno-subobject-linkage"]

# Tests are compiled more often than they run; the code under test is optimised.
TEST_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

def nibble_room(
        name,
        deps = [],
        copts = [],
        exclude = [],
        apart = [],
        folders = [],
        testing_deps = [],
        test_deps = [],
        test_data = [],
        test_copts = TEST_COPTS,
        test_size = "medium",
        test_linkopts = [],
        test_linker_inputs = [],
        shards = 1,
        own_tests = {},
        visibility = None):
    """See above.

    Args:
      name: the name of the folder.
      deps: of the library and of the tests.
      copts: of the library.
      exclude: files that belong to other targets of the folder.
      apart: files that cannot share an object with others, because their headers or macros conflict.
      folders: subfolders without a BUILD that belong to the room.
      testing_deps: of the helpers, beyond the room itself and googletest.
      test_deps: of the tests, beyond the room, its helpers and googletest.
      test_data: files that the tests read.
      test_copts: of the test files; [] for tests that compute.
      test_size: of the test program.
      test_linkopts: of the test program.
      test_linker_inputs: files that test_linkopts name.
      shards: processes that share the test program's tests.
      own_tests: file → attributes, for tests that need a separate program.
      visibility: of the library and of the helpers.
    """
    testing = _in(folders, _TESTING)
    skip = exclude + _PROGRAMS + testing + _in(folders, ["*_test.cc"])
    sources = native.glob(_in(folders, ["*.cc"]), exclude = skip)
    cc_library(
        name = name,
        srcs = joined_sources(name, sources, apart),
        hdrs = native.glob(_in(folders, ["*.h"]), exclude = skip),
        copts = copts + _JOINED_COPTS,
        textual_hdrs = sources,
        deps = deps,
        visibility = visibility,
    )
    used = [":" + name] + deps
    helpers = native.glob(testing, exclude = exclude)
    if helpers:
        cc_library(
            name = "testing",
            testonly = True,
            srcs = joined_sources("testing", [file for file in helpers if file.endswith(".cc")]),
            hdrs = [file for file in helpers if file.endswith(".h")],
            copts = _JOINED_COPTS,
            textual_hdrs = [file for file in helpers if file.endswith(".cc")],
            deps = _distinct(used + testing_deps + ["@system//:gtest", "@system//:gmock"]),
            visibility = visibility,
        )
        used = used + [":testing"]
    used = _distinct(used + test_deps + ["@system//:gtest_main"])
    tests = native.glob(_in(folders, ["*_test.cc"]), exclude = exclude + own_tests.keys())
    if tests:
        cc_test(
            name = "tests",
            size = test_size,
            srcs = _joined_tests(tests, apart),
            copts = test_copts + _JOINED_COPTS,
            data = test_data,
            additional_linker_inputs = test_linker_inputs,
            linkopts = test_linkopts,
            linkstatic = True,
            shard_count = shards if shards > 1 else None,
            deps = used + [":tests_sources"],
        )
    for file, attributes in own_tests.items():
        cc_test(
            name = file[:-len(".cc")],
            srcs = [file],
            copts = test_copts,
            deps = _distinct(used + attributes.get("deps", [])),
            **{key: value for key, value in attributes.items() if key != "deps"}
        )

def nibble_system_tests(deps, exclude = [], data = [], copts = TEST_COPTS, **attributes):
    """A test for each *_test.cc: tests of whole systems, which share objects and a program, but no process."""
    tests = native.glob(["*_test.cc"], exclude = exclude)
    cc_binary(
        name = "tests_program",
        testonly = True,
        srcs = _joined_tests(tests),
        copts = copts + _JOINED_COPTS,
        linkstatic = True,
        deps = deps + [
            ":tests_sources",
            "//tests:one_file_main",
        ],
    )
    for file in tests:
        native.sh_test(
            name = file[:-len(".cc")],
            srcs = [":tests_program"],
            args = [file],
            data = [":tests_program"] + data,
            **attributes
        )

def nibble_programs(programs, deps, **attributes):
    """A program for each file, named after it."""
    for file in programs:
        cc_binary(
            name = file[:-len(".cc")],
            srcs = [file],
            deps = deps,
            **attributes
        )

# Sources of a target that depends on :tests_sources.
def _joined_tests(tests, apart = []):
    cc_library(
        name = "tests_sources",
        testonly = True,
        textual_hdrs = tests,
        visibility = ["//visibility:private"],
    )
    return joined_sources("tests", tests, apart)

def _in(folders, patterns):
    return patterns + [folder + "/" + pattern for folder in folders for pattern in patterns]

def _distinct(labels):
    return {label: None for label in labels}.keys()

"""A folder is a room: one library, one library for its tests' helpers, one test program.

    nibble_room(
        name = "state",               # //server/state
        deps = [...],                 # what the room may depend on
        visibility = [...],           # who may depend on it
    )

makes, from the files that are there:
    :state    *.h and *.cc, except what follows
    :testing  testing.*, *_testing.*: what tests of this and of other rooms share
    :tests    *_test.cc, in one program (`--test_filter=Suite.*` runs a part of it)

Programs (main.cc, *_main.cc) have targets of their own beside it.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

_TESTING = ["testing.cc", "testing.h", "*_testing.cc", "*_testing.h"]
_PROGRAMS = ["main.cc", "*_main.cc"]

# Tests are compiled more often than they run, and what they test is optimised all the same.
_TEST_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

def nibble_room(
        name,
        deps = [],
        copts = [],
        exclude = [],
        folders = [],
        testing_deps = [],
        test_deps = [],
        test_data = [],
        test_copts = _TEST_COPTS,
        test_size = "medium",
        shards = 1,
        own_tests = {},
        visibility = None):
    """See above.

    Args:
      name: the folder's.
      deps: of the library; tests have them too.
      copts: of the library.
      exclude: files that belong to other targets of the folder.
      folders: subfolders that are part of the room and have no BUILD.
      testing_deps: of the helpers, beyond the room itself and googletest.
      test_deps: of the tests, beyond the room, its helpers and googletest.
      test_data: files that the tests read.
      test_copts: of the tests' own files; [] for those that compute.
      test_size: of the test program.
      shards: processes that share the test program's tests.
      own_tests: file → attributes, of tests that need a program of their own.
      visibility: of the library and of the helpers.
    """
    testing = _in(folders, _TESTING)
    skip = exclude + _PROGRAMS + testing + _in(folders, ["*_test.cc"])
    cc_library(
        name = name,
        srcs = native.glob(_in(folders, ["*.cc"]), exclude = skip),
        hdrs = native.glob(_in(folders, ["*.h"]), exclude = skip),
        copts = copts,
        deps = deps,
        visibility = visibility,
    )
    used = [":" + name] + deps
    helpers = native.glob(testing, exclude = exclude)
    if helpers:
        cc_library(
            name = "testing",
            testonly = True,
            srcs = [file for file in helpers if file.endswith(".cc")],
            hdrs = [file for file in helpers if file.endswith(".h")],
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
            srcs = tests,
            copts = test_copts,
            data = test_data,
            shard_count = shards if shards > 1 else None,
            deps = used,
        )
    for file, attributes in own_tests.items():
        cc_test(
            name = file[:-len(".cc")],
            srcs = [file],
            copts = test_copts,
            deps = _distinct(used + attributes.get("deps", [])),
            **{key: value for key, value in attributes.items() if key != "deps"}
        )

def nibble_test_programs(tests, deps, copts = _TEST_COPTS, **attributes):
    """A program for each file: whole systems, which cannot share a process or a machine."""
    for file in tests:
        cc_test(
            name = file[:-len(".cc")],
            srcs = [file],
            copts = copts,
            deps = deps + ["@system//:gtest_main"],
            **attributes
        )

def nibble_programs(programs, deps, **attributes):
    """A program for each file, named as it is."""
    for file in programs:
        cc_binary(
            name = file[:-len(".cc")],
            srcs = [file],
            deps = deps,
            **attributes
        )

def _in(folders, patterns):
    return patterns + [folder + "/" + pattern for folder in folders for pattern in patterns]

def _distinct(labels):
    return {label: None for label in labels}.keys()

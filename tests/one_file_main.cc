// The main of a program with the tests of several files: `PROGRAM lost_store_test.cc` runs the
// tests of that file. Without a file, all tests. `bazel test --test_filter` holds too.
#include <fnmatch.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/process/guard_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

// The names of the file's tests that one of the patterns matches.
std::vector<std::string> TestsOf(const std::string& file, const std::string& patterns) {
  std::vector<std::string> names;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!absl::EndsWith(test.file(), absl::StrCat("/", file))) continue;
      const std::string name = absl::StrCat(suite.name(), ".", test.name());
      for (const std::string& pattern : std::vector<std::string>(absl::StrSplit(patterns, ':'))) {
        if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) continue;
        names.push_back(name);
        break;
      }
    }
  }
  return names;
}

// False if the file has no tests.
bool RunOnly(const std::string& file) {
  const std::vector<std::string> wanted =
      absl::StrSplit(testing::GTEST_FLAG(filter), absl::MaxSplits('-', 1));
  if (TestsOf(file, "*").empty()) return false;
  const std::string names = absl::StrJoin(TestsOf(file, wanted[0].empty() ? "*" : wanted[0]), ":");
  testing::GTEST_FLAG(filter) =
      absl::StrCat(names.empty() ? "none" : names, "-", wanted.size() > 1 ? wanted[1] : "");
  return true;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  nibble::process_testing::GuardProcesses();
  testing::InitGoogleMock(&argc, argv);
  if (argc > 2 || (argc == 2 && !nibble::RunOnly(argv[1]))) {
    std::fprintf(stderr, "%s: '%s' is not a file of its tests\n", argv[0], argv[argc - 1]);
    return 2;
  }
  return RUN_ALL_TESTS();
}

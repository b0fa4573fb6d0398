#include "client/cluster/log_tail.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(LogTailTest, ItIsTheLastWholeLines) {
  const std::string path = testing::TempDir() + "/tail.log";
  EXPECT_EQ(LogTail(path + ".none"), "(cannot be read)");
  std::ofstream(path) << "";
  EXPECT_EQ(LogTail(path), "(is empty)");
  std::ofstream(path) << "first\nlast\n";
  EXPECT_EQ(LogTail(path), "first\nlast");
  std::ofstream many(path);
  for (int i = 0; i < 1000; ++i) many << absl::StrCat("line ", i, "\n");
  many.close();
  const std::string tail = LogTail(path);
  EXPECT_EQ(std::count(tail.begin(), tail.end(), '\n'), 11);
  EXPECT_EQ(tail.substr(0, tail.find('\n')), "line 988");
  EXPECT_EQ(tail.substr(tail.rfind('\n') + 1), "line 999");
}

}  // namespace
}  // namespace nibble

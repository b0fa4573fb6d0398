#include "server/controller/log.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(LogTest, ALineHasTimeLevelAndTextAndIsOneLine) {
  EXPECT_EQ(LogLine(1'000, LogLevel::kWarning, "two\nlines"),
            "1970-01-01T00:00:01.000Z WARNING two lines");
}

}  // namespace
}  // namespace nibble

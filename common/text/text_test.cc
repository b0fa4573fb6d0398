#include "common/text/text.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(TextTest, DurationsHaveTwoUnits) {
  EXPECT_EQ(DurationText(-3), "0s");
  EXPECT_EQ(DurationText(0.4), "0s");
  EXPECT_EQ(DurationText(59.4), "59s");
  EXPECT_EQ(DurationText(59.6), "1m00s");
  EXPECT_EQ(DurationText(125), "2m05s");
  EXPECT_EQ(DurationText(3720), "1h02m");
  EXPECT_EQ(DurationText(4 * 3600 + 3 * 86400), "3d04h");
  EXPECT_EQ(DurationText(1e300), "9999d00h");
}

TEST(TextTest, CountsAndBytesHaveThreeDigits) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(9.994), "9.99");
  EXPECT_EQ(CountText(9.996), "10.0");
  EXPECT_EQ(CountText(99.96), "100");
  EXPECT_EQ(CountText(999.4), "999");
  EXPECT_EQ(CountText(999.7), "1.00k");
  EXPECT_EQ(CountText(12'345), "12.3k");
  EXPECT_EQ(CountText(9'990'000), "9.99M");
  EXPECT_EQ(CountText(5e15), "5000T");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1'500'000'000), "1.5 GB");
}

TEST(TextTest, TimesAreUtc) {
  EXPECT_EQ(TimeText(0), "-");
  EXPECT_EQ(TimeText(1'000'000'000'000), "2001-09-09 01:46:40");
  EXPECT_EQ(AgoText(1'000, 126'000), "2m05s ago");
}

TEST(TextTest, WrapKeepsTheWholeTextAndBreaksAtSpaces) {
  EXPECT_EQ(Wrap("why   one two three", 10, 6),
            (std::vector<std::string>{"why   one", "      two", "      thre", "      e"}));
  EXPECT_EQ(Wrap("short", 10, 6), std::vector<std::string>{"short"});
  EXPECT_EQ(Wrap("two\nlines", 20, 2), (std::vector<std::string>{"two", "  lines"}));
  EXPECT_EQ(Wrap("", 10, 2), std::vector<std::string>{""});
  EXPECT_EQ(Wrap("naïve→b", 5, 4), (std::vector<std::string>{"naïve", "→b"}));
  EXPECT_EQ(Wrap("abc", 1, 4), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(TextTest, OnOneLineKeepsEveryWord) {
  EXPECT_EQ(OnOneLine("2 problems:\n  line 1: a\n  line 2: b\n"),
            "2 problems: line 1: a line 2: b");
}

TEST(TextTest, WidthsCountCharactersNotBytes) {
  EXPECT_EQ(WidthOf("a→b"), 3u);
  EXPECT_EQ(WidthOf("e\u0301"), 1u);
  EXPECT_EQ(Fit("naïve text", 6), "naïve…");
  EXPECT_EQ(Fit("whole", 5), "whole");
  EXPECT_EQ(Fit("x", 0), "");
}

TEST(TextTest, FitReplacesControlCharacters) { EXPECT_EQ(Fit("a\x1b[2Jb\n", 20), "a?[2Jb?"); }

}  // namespace
}  // namespace nibble

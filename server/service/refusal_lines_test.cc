#include "server/service/refusal_lines.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr RefusalLines::Limits kTightLines = {.of_address = {.per_second = 1, .burst = 2},
                                              .of_all = {.per_second = 5, .burst = 7},
                                              .count_ms = 1000,
                                              .addresses = 2};

TEST(RefusalLinesTest, EachRefusalHasALineOrIsCounted) {
  ManualClock clock(0);
  RefusalLines lines(clock, kTightLines);
  EXPECT_THAT(lines.TakeCounts(false), IsEmpty());
  int64_t written = 0;
  for (int i = 0; i < 10; ++i) written += lines.Take("a");
  written += lines.Take("b");
  EXPECT_EQ(written, 2 + 1);
  EXPECT_THAT(lines.TakeCounts(false), IsEmpty());  // not yet
  clock.Advance(1000);
  EXPECT_THAT(lines.TakeCounts(false), ElementsAre(Pair("a", 8)));
  EXPECT_THAT(lines.TakeCounts(true), IsEmpty());
  EXPECT_TRUE(lines.Take("a"));
  EXPECT_FALSE(lines.Take("a"));
  EXPECT_THAT(lines.TakeCounts(/*end=*/true), ElementsAre(Pair("a", 1)));
}

TEST(RefusalLinesTest, ManyAddressesAreCountedTogether) {
  ManualClock clock(0);
  RefusalLines lines(clock, kTightLines);
  int64_t written = 0;
  for (const char* address : {"a", "b", "c", "d"}) {
    for (int i = 0; i < 5; ++i) written += lines.Take(address);
  }
  EXPECT_EQ(written, 7);  // of all, of which each but the last one had 2
  clock.Advance(1000);
  EXPECT_THAT(lines.TakeCounts(false), ElementsAre(Pair("a", 3), Pair("b", 3), Pair("others", 7)));
}

TEST(RefusalLinesTest, ManyAddressesWriteNoMoreThanTheRateOfAll) {
  ManualClock clock(0);
  RefusalLines lines(clock, kTightLines);
  int64_t written = 0, counted = 0;
  constexpr int kAddresses = 1000;
  for (int second = 0; second < 10; ++second) {
    for (int i = 0; i < kAddresses; ++i) written += lines.Take(absl::StrCat("address ", i));
    clock.Advance(1000);
    const RefusalLines::Counts counts = lines.TakeCounts(false);
    EXPECT_LE(counts.size(), 3u);
    for (const auto& [address, count] : counts) counted += count;
  }
  EXPECT_EQ(written, 7 + 9 * 5);
  EXPECT_EQ(written + counted, 10 * kAddresses);
}

}  // namespace
}  // namespace nibble

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

constexpr RefusalLines::Limits kTight = {
    .lines = {.per_second = 1, .burst = 2}, .count_ms = 1000, .addresses = 2};

TEST(RefusalLinesTest, EachRefusalHasALineOrIsCounted) {
  ManualClock clock(0);
  RefusalLines lines(clock, kTight);
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
  RefusalLines lines(clock, kTight);
  for (const char* address : {"a", "b", "c", "d"}) {
    for (int i = 0; i < 5; ++i) (void)lines.Take(address);
  }
  clock.Advance(1000);
  EXPECT_THAT(lines.TakeCounts(false), ElementsAre(Pair("a", 3), Pair("b", 3), Pair("others", 6)));
}

}  // namespace
}  // namespace nibble

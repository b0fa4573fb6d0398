#include "worker/agent/watchdog.h"

#include <map>

#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr WatchdogLimits kLimits = {.median_steps = 10, .least_ms = 500};

LinkHost::Rank Stepping(int64_t median_ms, int64_t step_at_ms, const char* waiting_in = "") {
  LinkHost::Rank rank = {.connected = true, .step_at_ms = step_at_ms, .median_step_ms = median_ms};
  rank.news.doing = RankNews::Doing::kSteps;
  rank.news.next_step = 12;
  rank.news.waiting_in = waiting_in;
  return rank;
}

TEST(WatchdogTest, ARankHangsAfterManyTimesItsMedian) {
  const std::map<int32_t, LinkHost::Rank> ranks = {{0, Stepping(100, 2000)}};
  EXPECT_TRUE(FindHung(ranks, kLimits, 3000).empty());
  const auto hung = FindHung(ranks, kLimits, 3001);
  ASSERT_EQ(hung.size(), 1u);
  EXPECT_EQ(hung[0].detail,
            "rank 0 has made no step for 1001 ms, its median is 100 ms; before step 12");
}

TEST(WatchdogTest, FastStepsAreGivenTheLeastTime) {
  const std::map<int32_t, LinkHost::Rank> ranks = {{0, Stepping(1, 2000)}};
  EXPECT_TRUE(FindHung(ranks, kLimits, 2500).empty());
  EXPECT_EQ(FindHung(ranks, kLimits, 2501).size(), 1u);
}

TEST(WatchdogTest, ARankThatStandsOrIsGoneOrHasNoMedianDoesNotHang) {
  std::map<int32_t, LinkHost::Rank> ranks = {
      {0, Stepping(1, 0)}, {1, Stepping(1, 0)}, {2, Stepping(0, 0)}};
  ranks[0].news.doing = RankNews::Doing::kStanding;
  ranks[1].connected = false;
  EXPECT_TRUE(FindHung(ranks, kLimits, 1'000'000).empty());
}

TEST(WatchdogTest, TheRankThatWaitsForNobodyComesFirst) {
  const std::map<int32_t, LinkHost::Rank> ranks = {
      {0, Stepping(1, 0, "all-gather")}, {1, Stepping(1, 0)}, {2, Stepping(1, 0, "all-gather")}};
  const auto hung = FindHung(ranks, kLimits, 10'000);
  ASSERT_EQ(hung.size(), 3u);
  EXPECT_EQ(hung[0].rank, 1);
  EXPECT_EQ(hung[1].rank, 0);
  EXPECT_NE(hung[1].detail.find("waits in all-gather"), std::string::npos);
}

}  // namespace
}  // namespace nibble

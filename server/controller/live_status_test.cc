#include "server/controller/live_status.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

std::vector<v1::StepSample> Samples(int64_t first, int64_t last) {
  std::vector<v1::StepSample> samples;
  for (int64_t step = first; step <= last; ++step) samples.emplace_back().set_step(step);
  return samples;
}

const v1::StepSample& Of(const v1::StepSample& sample) { return sample; }
const v1::StepSample& Of(const LiveStatus::Sample& sample) { return *sample; }

template <class Samples>
std::vector<int64_t> Steps(const Samples& samples) {
  std::vector<int64_t> steps;
  for (const auto& sample : samples) steps.push_back(Of(sample).step());
  return steps;
}

TEST(LiveStatusTest, ASampleReportedTwiceIsKeptOnce) {
  LiveStatus live(1000);
  EXPECT_EQ(live.Report("a", 1, 3, Samples(0, 2)).size(), 3u);
  EXPECT_THAT(Steps(live.Report("a", 1, 4, Samples(1, 3))), testing::ElementsAre(3));
  EXPECT_THAT(Steps(live.SamplesOf("a")), testing::ElementsAre(0, 1, 2, 3));
}

TEST(LiveStatusTest, SamplesOfRepeatedStepsReplaceThoseOfTheOldAttempt) {
  LiveStatus live(1000);
  live.Report("a", 1, 10, Samples(0, 9));
  live.Report("a", 2, 5, {});  // it loads its checkpoint first
  EXPECT_EQ(live.ProgressOf("a").next_step, 5);
  EXPECT_THAT(Steps(live.Report("a", 2, 7, Samples(5, 6))), testing::ElementsAre(5, 6));
  EXPECT_THAT(Steps(live.SamplesOf("a")), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(LiveStatusTest, TheNextStepOfAnAttemptDoesNotGoBack) {
  LiveStatus live(1000);
  live.Report("a", 1, 10, {});
  live.Report("a", 1, 8, {});  // another worker of the gang, a little behind
  EXPECT_EQ(live.ProgressOf("a").next_step, 10);
  EXPECT_EQ(live.ProgressOf("a").attempt, 1);
}

TEST(LiveStatusTest, ALongSeriesIsThinnedAndKeepsItsNewestSample) {
  LiveStatus live(1000);
  const int64_t last = 5 * static_cast<int64_t>(LiveStatus::kMaxSamples);
  for (int64_t step = 0; step <= last; ++step) live.Report("a", 1, step, Samples(step, step));
  const std::vector<int64_t> steps = Steps(live.SamplesOf("a"));
  EXPECT_LE(steps.size(), LiveStatus::kMaxSamples);
  EXPECT_GT(steps.size(), LiveStatus::kMaxSamples / 4);
  EXPECT_EQ(steps.front(), 0);
  EXPECT_EQ(steps.back(), last);
}

v1::GangReport GangOf(int64_t attempt, const std::vector<int32_t>& ranks) {
  v1::GangReport gang;
  gang.set_job("a");
  gang.set_attempt(attempt);
  for (const int32_t rank : ranks) {
    v1::RankHealth& health = *gang.add_ranks();
    health.set_rank(rank);
    health.set_work_seconds(1 + rank);
  }
  return gang;
}

TEST(LiveStatusTest, RanksOfEveryWorkerAreThoseOfTheLatestAttempt) {
  LiveStatus live(1000);
  live.ReportRanks("w2", GangOf(1, {2, 3}));
  live.ReportRanks("w1", GangOf(1, {0, 1}));
  const std::vector<v1::RankPace> ranks = live.RanksOf("a", 1);
  ASSERT_EQ(ranks.size(), 4u);
  EXPECT_EQ(ranks[2].worker(), "w2");
  EXPECT_EQ(ranks[2].work_seconds(), 3);
  live.ReportRanks("w1", GangOf(2, {0}));
  live.ReportRanks("w2", GangOf(1, {2, 3}));  // late, of the attempt before
  EXPECT_EQ(live.RanksOf("a", 2).size(), 1u);
  EXPECT_TRUE(live.RanksOf("a", 1).empty());
}

TEST(LiveStatusTest, TheLatestPrecisionIsKeptWhenALaterReportHasNone) {
  LiveStatus live(1000);
  EXPECT_FALSE(live.PrecisionOf("a").has_value());
  v1::GangReport gang = GangOf(1, {0});
  gang.mutable_precision()->set_step(40);
  live.ReportRanks("w1", gang);
  live.ReportRanks("w1", GangOf(2, {0}));
  ASSERT_TRUE(live.PrecisionOf("a").has_value());
  EXPECT_EQ(live.PrecisionOf("a")->step(), 40);
}

TEST(LiveStatusTest, AnExpiredLeaseIsReturnedOnce) {
  LiveStatus live(1000);
  live.NoteHeartbeat("w1", 1, 0);
  EXPECT_TRUE(live.TakeExpired(1000).empty());
  EXPECT_EQ(live.TakeExpired(1001).size(), 1u);
  EXPECT_TRUE(live.TakeExpired(5000).empty());
  EXPECT_FALSE(live.LastHeard("w1").has_value());
}

}  // namespace
}  // namespace nibble

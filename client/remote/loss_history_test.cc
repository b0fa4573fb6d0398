#include "client/remote/loss_history.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(LossHistoryTest, AMillionStepsAreKeptInBoundedMemoryWithTheirSpike) {
  LossHistory history;
  constexpr int64_t kSteps = 1'000'000;
  for (int64_t step = 0; step < kSteps; ++step) history.Add(step, step == 700'001 ? 50 : 3);
  EXPECT_LE(history.buckets().size(), LossHistory::kMostBuckets);
  EXPECT_GT(history.buckets().size(), LossHistory::kMostBuckets / 3);
  EXPECT_EQ(history.buckets().front().first_step, 0);
  EXPECT_EQ(history.buckets().back().last_step, kSteps - 1);
  double most = 0;
  int64_t samples = 0;
  for (const LossBucket& bucket : history.buckets()) {
    EXPECT_EQ(bucket.first_step / history.width(), bucket.last_step / history.width());
    most = std::max(most, bucket.most);
    samples += bucket.finite;
  }
  EXPECT_EQ(most, 50);
  EXPECT_EQ(samples, kSteps);
}

TEST(LossHistoryTest, ResolutionIsEqualOverStepsHoweverDenselyTheyAreSampled) {
  LossHistory history;
  for (int64_t step = 0; step < 500'000; step += 100) history.Add(step, 3);     // as fetched
  for (int64_t step = 500'000; step < 1'000'000; ++step) history.Add(step, 3);  // as watched
  int64_t early = 0;
  for (const LossBucket& bucket : history.buckets()) early += bucket.first_step < 500'000 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(early), static_cast<double>(history.buckets().size()) / 2, 2);
}

TEST(LossHistoryTest, ARunThatWentBackToACheckpointReplacesLaterSteps) {
  LossHistory history;
  for (int64_t step = 0; step < 100; ++step) history.Add(step, 5);
  history.Add(60, 4);
  EXPECT_EQ(history.buckets().size(), 61u);
  EXPECT_EQ(history.buckets().back().mean(), 4);
  EXPECT_EQ(history.MeanOver(59, 60), 4.5);
  EXPECT_EQ(history.MeanOver(61, 99), std::nullopt);
}

TEST(LossHistoryTest, NonFiniteLossesAreCountedAndLeaveTheMeanAlone) {
  LossHistory history;
  history.Add(0, 2);
  history.Add(1, std::numeric_limits<double>::quiet_NaN());
  history.Add(2, std::numeric_limits<double>::infinity(), /*updated=*/false);
  history.Add(3, 4);
  EXPECT_EQ(history.MeanOver(0, 3), 3);
  EXPECT_EQ(history.buckets()[1].non_finite, 1);
  EXPECT_EQ(history.buckets()[2].skipped, 1);
  const std::vector<LossPoint> points = SmoothedLosses(history, 2);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].loss, 2);
}

TEST(SmoothedLossesTest, EachPointIsTheMeanOfItsWindow) {
  LossHistory history;
  for (int64_t step = 0; step < 10; ++step) history.Add(step, static_cast<double>(step));
  const std::vector<LossPoint> points = SmoothedLosses(history, 4);
  ASSERT_EQ(points.size(), 10u);
  EXPECT_EQ(points[0].loss, 1);  // of 0, 1 and 2
  EXPECT_EQ(points[5].loss, 5);
  EXPECT_EQ(points[9].loss, 8);
  EXPECT_EQ(SmoothedLosses(history, 0)[3].loss, 3);
  EXPECT_TRUE(SmoothedLosses(LossHistory(), 4).empty());
}

}  // namespace
}  // namespace nibble

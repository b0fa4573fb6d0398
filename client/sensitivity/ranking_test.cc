#include "client/sensitivity/ranking.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sensitivity/sensitivity_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// Control, bound and three groups "a", "b", "c" that cost 0.4, 1, 0.5, 0.44 and 0.4 of 16 bit.
Experiment ThreeGroups(int64_t repeats) {
  Experiment experiment = {.job = "train-7",
                           .step = 200,
                           .steps = 10,
                           .repeats = repeats,
                           .keep = false,
                           .recipe = {},
                           .arms = {}};
  experiment.arms.push_back(
      {.kind = ArmKind::kControl, .group = {}, .change = {}, .gemm_time = 0.4});
  experiment.arms.push_back(
      {.kind = ArmKind::kBound, .group = {"*", {0}}, .change = {}, .gemm_time = 1});
  for (const auto& [name, time] :
       {std::pair("a", 0.5), std::pair("b", 0.44), std::pair("c", 0.4)}) {
    experiment.arms.push_back(
        {.kind = ArmKind::kGroup, .group = {name, {0}}, .change = {}, .gemm_time = time});
  }
  return experiment;
}

// Losses by arm and repeat; NaN: the fork failed.
std::vector<ForkResult> Results(const std::vector<std::vector<double>>& losses) {
  std::vector<ForkResult> results;
  for (size_t arm = 0; arm < losses.size(); ++arm) {
    for (size_t i = 0; i < losses[arm].size(); ++i) {
      ForkResult result = {.arm = arm,
                           .repeat = static_cast<int64_t>(i) + 1,
                           .job = absl::StrCat("fork-", arm, "-", i + 1),
                           .loss = losses[arm][i],
                           .problem = ""};
      if (std::isnan(losses[arm][i])) {
        result.loss.reset();
        result.problem = "failed: out of memory";
      }
      results.push_back(result);
    }
  }
  return results;
}
constexpr double kFailed = std::numeric_limits<double>::quiet_NaN();

TEST(Estimates, AreTheMeanAndItsStandardError) {
  const Estimate estimate = EstimateOf({1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(estimate.mean, 3);
  // Deviations -2, -1, 0, 3: variance 14/3.
  EXPECT_DOUBLE_EQ(*estimate.error, std::sqrt(14.0 / 3 / 4));
  EXPECT_FALSE(EstimateOf({5}).error.has_value());
  EXPECT_FALSE(EstimateOf({5}).significant());
}

TEST(Estimates, TheBoundOfSignificanceFollowsStudentsT) {
  EXPECT_DOUBLE_EQ(StudentT975(1), 12.706);
  EXPECT_DOUBLE_EQ(StudentT975(30), 2.042);
  EXPECT_NEAR(StudentT975(31), 2.0395, 2e-4);
  EXPECT_NEAR(StudentT975(1'000'000), 1.96, 1e-4);
  // Two values need a mean of 12.7 standard errors.
  EXPECT_FALSE(EstimateOf({11, 13}).significant());
  EXPECT_TRUE(EstimateOf({12, 14}).significant());
  EXPECT_FALSE(EstimateOf({-12, -14}).significant());
}

TEST(Losses, AreTheMeanOfTheSecondHalfOfAFork) {
  const Experiment experiment = ThreeGroups(1);
  std::vector<std::pair<int64_t, double>> losses;
  for (int64_t step = 200; step < 210; ++step)
    losses.emplace_back(step, step < 205 ? 9 : step - 200);
  EXPECT_DOUBLE_EQ(*ComparedLoss(experiment, losses), 7);
  losses[7].second = INFINITY;
  EXPECT_THAT(std::string(ComparedLoss(experiment, losses).status().message()),
              HasSubstr("the loss of step 207 is inf"));
  losses.pop_back();
  losses.erase(losses.begin() + 6);
  EXPECT_THAT(std::string(ComparedLoss(experiment, losses).status().message()),
              HasSubstr("the loss of step 206 is missing"));
}

TEST(Rank, OrdersGroupsByTheirMeanImprovementOverPairs) {
  // The repeats differ by far more than the arms, but in the same way.
  const auto ranking = Rank(ThreeGroups(3), Results({{5.0, 6.0, 7.0},
                                                     {4.8, 5.8, 6.8},
                                                     {4.99, 5.99, 7.01},
                                                     {4.9, 5.9, 6.91},
                                                     {4.99, 5.98, 6.98}}));
  ASSERT_TRUE(ranking.ok()) << ranking.status();
  ASSERT_EQ(ranking->groups.size(), 3u);
  EXPECT_EQ(ranking->groups[0].arm, 3u);  // b
  EXPECT_EQ(ranking->groups[1].arm, 4u);  // c
  EXPECT_EQ(ranking->groups[2].arm, 2u);  // a
  EXPECT_NEAR(ranking->groups[0].improvement->mean, 0.29 / 3, 1e-12);
  EXPECT_NEAR(ranking->groups[0].added_time, 0.1, 1e-12);
  EXPECT_NEAR(ranking->bound.improvement->mean, 0.2, 1e-12);
  EXPECT_NEAR(ranking->groups[0].share->mean, 0.29 / 3 / 0.2, 1e-12);
  EXPECT_NEAR(*ranking->groups[0].share->error, *ranking->groups[0].improvement->error / 0.2, 1e-9);
  EXPECT_NEAR(ranking->control.mean, 6, 1e-12);
  ASSERT_TRUE(ranking->best.has_value());
  EXPECT_EQ(*ranking->best, 0u);
  // c costs nothing, and its improvement of 5/3 hundredths exceeds 4.3 times its error of 1/3.
  ASSERT_TRUE(ranking->cheapest.has_value());
  EXPECT_EQ(*ranking->cheapest, 1u);
}

TEST(Rank, NoiseIsNotSuggested) {
  const auto ranking = Rank(
      ThreeGroups(3),
      Results(
          {{5.0, 6.0, 7.0}, {4.9, 6.1, 6.9}, {4.9, 6.05, 6.95}, {5.1, 5.9, 7.0}, {5.0, 6.1, 6.9}}));
  ASSERT_TRUE(ranking.ok()) << ranking.status();
  EXPECT_FALSE(ranking->best.has_value());
  EXPECT_FALSE(ranking->cheapest.has_value());
  for (const RankedArm& group : ranking->groups) EXPECT_FALSE(group.share.has_value());
}

TEST(Rank, OneRepeatHasNoStandardErrorAndSuggestsNothing) {
  const auto ranking = Rank(ThreeGroups(1), Results({{5}, {4}, {4.5}, {4.9}, {5}}));
  ASSERT_TRUE(ranking.ok()) << ranking.status();
  EXPECT_DOUBLE_EQ(ranking->groups[0].improvement->mean, 0.5);
  EXPECT_FALSE(ranking->groups[0].improvement->error.has_value());
  EXPECT_FALSE(ranking->best.has_value());
}

TEST(Rank, ARepeatWithoutItsPairIsNotCountedAndAGroupWithoutAnyComesLast) {
  const auto ranking = Rank(ThreeGroups(3), Results({{5.0, kFailed, 7.0},
                                                     {4.8, 5.8, 6.8},
                                                     {kFailed, kFailed, kFailed},
                                                     {4.9, 2.0, 6.9},
                                                     {4.99, 1.0, 6.99}}));
  ASSERT_TRUE(ranking.ok()) << ranking.status();
  EXPECT_EQ(ranking->groups[0].arm, 3u);
  EXPECT_EQ(ranking->groups[0].improvement->count, 2);
  EXPECT_NEAR(ranking->groups[0].improvement->mean, 0.1, 1e-12);
  EXPECT_EQ(ranking->groups[2].arm, 2u);
  EXPECT_FALSE(ranking->groups[2].improvement.has_value());
  // With the control's own, which takes a repeat from every arm.
  EXPECT_THAT(ranking->not_counted,
              UnorderedElementsAre("fork-0-2 (control, repeat 2): failed: out of memory",
                                   "fork-2-1 (a, repeat 1): failed: out of memory",
                                   "fork-2-2 (a, repeat 2): failed: out of memory",
                                   "fork-2-3 (a, repeat 3): failed: out of memory"));
}

TEST(Rank, WithoutAControlThereIsNothingToCompareWith) {
  const auto ranking = Rank(ThreeGroups(1), Results({{kFailed}, {4}, {4}, {4}, {4}}));
  EXPECT_EQ(ranking.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ranking.status().message()), HasSubstr("out of memory"));
}

TEST(Text, SuggestsTheCommandThatAppliesTheWinner) {
  const Experiment experiment = ThreeGroups(3);
  const std::vector<ForkResult> results =
      Results({{5, 6, 7}, {4, 5, 6}, {4.5, 5.5, 6.5}, {4.9, 5.9, 6.9}, {5, 6, 7}});
  const auto ranking = Rank(experiment, results);
  ASSERT_TRUE(ranking.ok()) << ranking.status();
  const Outline outline = *MakeOutline(*ModelPreset("tiny-hybrid"));
  const Rendered running = RenderRanking(experiment, outline, *ranking, results, true);
  EXPECT_THAT(running.table, HasSubstr("nibble recipe set train-7 --layer 'a:all=bf16' --reason "
                                       "'sensitivity at step 200'"));
  EXPECT_THAT(running.table, HasSubstr("50 % ± 0"));
  EXPECT_THAT(running.csv, HasSubstr("\na,1,3,0.5,0,yes,0.5,0,0.25\n"));
  EXPECT_THAT(running.json, HasSubstr("\"suggestion\": \"a\""));
  EXPECT_THAT(running.json, HasSubstr("\"loss\": 4.5"));
  EXPECT_THAT(RenderRanking(experiment, outline, *ranking, results, false).table,
              HasSubstr("nibble job fork train-7 --at-step 200 --layer 'a:all=bf16'"));
}

}  // namespace
}  // namespace nibble

#include "client/sensitivity/fork_plan.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "model/model_spec.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

Outline TinyHybrid() { return *MakeOutline(*ModelPreset("tiny-hybrid")); }  // M-M*-M-

ResolvedRecipe Resolved(const Recipe& recipe) { return *Resolve(recipe, TinyHybrid(), 0); }

std::vector<std::string> SelectorsOf(const std::vector<LayerGroup>& groups) {
  std::vector<std::string> selectors;
  for (const LayerGroup& group : groups) selectors.push_back(group.selector);
  return selectors;
}

Experiment TinyExperiment(int64_t repeats = 2) {
  const Recipe recipe = {.preset = "mxfp8"};
  const Outline outline = TinyHybrid();
  return {.job = "train-7",
          .step = 200,
          .steps = 50,
          .repeats = repeats,
          .keep = false,
          .recipe = recipe,
          .arms = *MakeArms(recipe, outline, 64, *GroupsByKind(outline, Resolved(recipe)))};
}

TEST(Groups, BlocksThatQuantiseNothingAreLeftOut) {
  // nvfp4 keeps the last block of a model of seven in bf16.
  const auto groups = GroupsByBlock(TinyHybrid(), Resolved({.preset = "nvfp4"}), 1);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(SelectorsOf(*groups),
              ElementsAre("block 0", "block 1", "block 2", "block 3", "block 4", "block 5"));
  for (const LayerGroup& group : *groups) EXPECT_THAT(group.layers, SizeIs(2)) << group.selector;
}

TEST(Groups, NeighbouringBlocksShareAGroupAndTheLastOneMayBeSmaller) {
  const auto groups = GroupsByBlock(TinyHybrid(), Resolved({.preset = "mxfp8"}), 3);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(SelectorsOf(*groups), ElementsAre("blocks 0-2", "blocks 3-5", "block 6"));
}

TEST(Groups, EveryKindOfLayerIsAGroup) {
  const auto groups = GroupsByKind(TinyHybrid(), Resolved({.preset = "mxfp8"}));
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(SelectorsOf(*groups), ElementsAre("mamba.in_proj", "mamba.out_proj", "mlp.up",
                                                "mlp.down", "attention.qkv", "attention.out"));
}

TEST(Groups, ARecipeThatQuantisesNothingHasNone) {
  EXPECT_EQ(GroupsByKind(TinyHybrid(), Resolved({.preset = "bf16"})).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Groups, SelectorsThatSelectNothingQuantisedOrAppearTwiceAreRefused) {
  const Outline outline = TinyHybrid();
  const ResolvedRecipe recipe = Resolved({.preset = "nvfp4"});
  const auto message = [&](const std::vector<std::string>& selectors) {
    return std::string(GroupsOf(selectors, outline, recipe).status().message());
  };
  EXPECT_EQ(message({"mlp.down", " first 2 blocks"}), "");
  EXPECT_THAT(message({"last 1 blocks"}), HasSubstr("'last 1 blocks' selects only layers"));
  EXPECT_THAT(message({"mlp", "mlp "}), HasSubstr("'mlp' appears twice"));
  EXPECT_THAT(message({"mpl.down"}), HasSubstr("groups: "));
}

TEST(Arms, EachPromotesItsGroupAndCostsItsTime) {
  const Experiment experiment = TinyExperiment();
  ASSERT_THAT(experiment.arms, SizeIs(8));
  const Arm& control = experiment.arms[0];
  const Arm& bound = experiment.arms[1];
  EXPECT_EQ(control.kind, ArmKind::kControl);
  EXPECT_EQ(bound.kind, ArmKind::kBound);
  EXPECT_NEAR(bound.gemm_time, 1, 1e-12);
  const Outline outline = TinyHybrid();
  double added = 0;
  for (size_t i = 2; i < experiment.arms.size(); ++i) {
    const Arm& arm = experiment.arms[i];
    EXPECT_GT(arm.gemm_time, control.gemm_time) << ArmName(arm);
    added += arm.gemm_time - control.gemm_time;
    const ResolvedRecipe promoted = Resolved(ApplyOver(experiment.recipe, arm.change));
    for (size_t layer = 0; layer < outline.linears.size(); ++layer) {
      EXPECT_EQ(promoted.layers[layer] == LayerRecipe(),
                outline.linears[layer].kind == arm.group.selector)
          << outline.linears[layer].name;
    }
  }
  // The kinds together are all layers.
  EXPECT_NEAR(control.gemm_time + added, 1, 1e-12);
}

TEST(Plan, RepeatsComeOneAfterTheOtherAndForksOfOneAreAlikeButForTheRecipe) {
  const std::vector<PlannedFork> forks = PlanForks(TinyExperiment());
  ASSERT_THAT(forks, SizeIs(16));
  for (size_t i = 0; i < forks.size(); ++i) {
    EXPECT_EQ(forks[i].repeat, i < 8 ? 1 : 2);
    EXPECT_EQ(forks[i].arm, i % 8);
    EXPECT_EQ(forks[i].settings, forks[i < 8 ? 0 : 8].settings);
  }
  EXPECT_THAT(forks[8].settings, Contains("training.repeat=2"));
  EXPECT_THAT(forks[8].settings, Contains("training.stop_at=250"));
  EXPECT_THAT(forks[8].settings, Contains("checkpoints.at_end=false"));
}

TEST(Plan, NamesAreNamesOfJobsAndDifferWhereLossesDo) {
  std::set<std::string> names;
  const auto add = [&names](const Experiment& experiment) {
    for (const PlannedFork& fork : PlanForks(experiment)) {
      EXPECT_TRUE(names.insert(fork.name).second) << fork.name;
      EXPECT_LE(fork.name.size(), 63u) << fork.name;
      EXPECT_TRUE(absl::StartsWith(fork.name, kForkPrefix)) << fork.name;
      EXPECT_EQ(fork.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-"),
                std::string::npos)
          << fork.name;
    }
  };
  const Experiment experiment = TinyExperiment();
  add(experiment);
  Experiment other = experiment;
  other.step = 100;
  add(other);
  other = experiment;
  other.steps = 60;
  add(other);
  other = experiment;
  other.keep = true;
  add(other);
  other = experiment;
  other.job = "train-8";
  add(other);
  other = experiment;
  other.recipe.set = {{"wgrad", "bf16"}};
  add(other);
}

TEST(Plan, MoreRepeatsAndOtherGroupsReuseTheForksThatExist) {
  std::set<std::string> names;
  for (const PlannedFork& fork : PlanForks(TinyExperiment(3))) names.insert(fork.name);
  for (const PlannedFork& fork : PlanForks(TinyExperiment(2))) {
    EXPECT_THAT(names, Contains(fork.name));
  }
  Experiment fewer = TinyExperiment(2);
  fewer.arms.erase(fewer.arms.begin() + 2, fewer.arms.begin() + 5);
  for (const PlannedFork& fork : PlanForks(fewer)) EXPECT_THAT(names, Contains(fork.name));
}

}  // namespace
}  // namespace nibble

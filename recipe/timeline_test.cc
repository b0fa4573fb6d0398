#include "recipe/timeline.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Recipe Change(const std::string& field, const std::string& value) {
  return {.set = {{field, value}}};
}

// Appends without an expected revision or a reason, by "test".
absl::StatusOr<int64_t> Append(Timeline& timeline, const Recipe& change, int64_t first_step,
                               int64_t next_step = 0) {
  return timeline.Append(-1, change, first_step, next_step, "test", 0, "");
}

std::vector<std::string> Values(const Recipe& recipe) {
  std::vector<std::string> values;
  for (const FieldSetting& setting : recipe.set) values.push_back(setting.value);
  return values;
}

TEST(Timeline, StartsWithRevisionOneFromStepZero) {
  const Timeline timeline(Recipe{.preset = "nvfp4"});
  EXPECT_EQ(timeline.latest(), 1);
  EXPECT_EQ(timeline.At(0).number, 1);
  EXPECT_EQ(timeline.At(1000000).recipe.preset, "nvfp4");
  EXPECT_EQ(timeline.NextSwitchAfter(0), -1);
  EXPECT_EQ(timeline.NextSwitchAfter(-1), 0);
}

TEST(Timeline, AnEmptyOneIsBf16AndAcceptsNoChange) {
  Timeline timeline;
  EXPECT_EQ(timeline.latest(), 0);
  EXPECT_EQ(timeline.At(5).number, 0);
  EXPECT_EQ(timeline.At(5).recipe, Recipe());
  EXPECT_EQ(timeline.NextSwitchAfter(-1), -1);
  EXPECT_EQ(Append(timeline, Change("fprop", "nvfp4"), 5).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Timeline, AChangeIsInEffectFromItsFirstStep) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  const absl::StatusOr<int64_t> number =
      timeline.Append(1, Change("fprop", "bf16"), 820, 100, "ann", 17, "loss gap");
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_EQ(*number, 2);
  EXPECT_EQ(timeline.At(819).number, 1);
  EXPECT_EQ(timeline.At(820).number, 2);
  EXPECT_EQ(timeline.NextSwitchAfter(0), 820);
  EXPECT_EQ(timeline.NextSwitchAfter(819), 820);
  EXPECT_EQ(timeline.NextSwitchAfter(820), -1);
  const Revision& revision = timeline.At(820);
  EXPECT_EQ(revision.author, "ann");
  EXPECT_EQ(revision.time_unix_ms, 17);
  EXPECT_EQ(revision.reason, "loss gap");
  EXPECT_EQ(revision.recipe, (Recipe{.preset = "nvfp4", .set = {{"fprop", "bf16"}}}));
}

TEST(Timeline, AnEarlierChangeRebasesPendingRevisions) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  ASSERT_EQ(*timeline.Append(1, Change("fprop", "bf16"), 800, 0, "ann", 1, "decay"), 2);
  ASSERT_EQ(*timeline.Append(2, Change("hadamard", "off"), 300, 0, "bob", 2, "ablation"), 3);
  EXPECT_THAT(Values(timeline.At(300).recipe), ElementsAre("off"));
  EXPECT_THAT(Values(timeline.At(800).recipe), ElementsAre("bf16", "off"));
  // The pending revision follows under a new number and keeps its author.
  const Revision& rebased = timeline.At(800);
  EXPECT_EQ(rebased.number, 4);
  EXPECT_EQ(timeline.latest(), 4);
  EXPECT_EQ(rebased.author, "ann");
  EXPECT_EQ(rebased.time_unix_ms, 1);
  EXPECT_EQ(rebased.reason, "decay");
  EXPECT_EQ(timeline.revisions().size(), 3u);
}

TEST(Timeline, OfTwoChangesAtOneStepTheLaterIsInEffect) {
  Timeline timeline(Recipe{});
  ASSERT_TRUE(Append(timeline, Change("fprop", "nvfp4"), 10).ok());
  ASSERT_TRUE(Append(timeline, Change("wgrad", "mxfp8"), 10).ok());
  EXPECT_THAT(Values(timeline.At(10).recipe), ElementsAre("nvfp4", "mxfp8"));
  EXPECT_EQ(timeline.At(10).number, 3);
  EXPECT_EQ(timeline.NextSwitchAfter(0), 10);
  EXPECT_EQ(timeline.NextSwitchAfter(10), -1);
}

TEST(Timeline, AStaleExpectedRevisionIsRefusedAndChangesNothing) {
  Timeline timeline(Recipe{});
  ASSERT_TRUE(Append(timeline, Change("fprop", "nvfp4"), 10).ok());
  const Timeline before = timeline;
  for (const int64_t expected : {0, 1, 3, 100}) {
    const absl::Status status =
        timeline.Append(expected, Change("wgrad", "mxfp8"), 20, 0, "", 0, "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("expected_revision: " + std::to_string(expected)), HasSubstr("latest, 2")));
  }
  EXPECT_TRUE(timeline == before);
  EXPECT_TRUE(timeline.Append(2, Change("wgrad", "mxfp8"), 20, 0, "", 0, "").ok());
}

TEST(Timeline, ThePastIsNotRewritten) {
  Timeline timeline(Recipe{});
  const Timeline before = timeline;
  const absl::Status status = Append(timeline, Change("fprop", "nvfp4"), 99, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("first_step: 99"), HasSubstr("100")));
  EXPECT_EQ(Append(timeline, Change("fprop", "nvfp4"), -1, -5).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(timeline == before);
  EXPECT_TRUE(Append(timeline, Change("fprop", "nvfp4"), 100, 100).ok());
}

TEST(Timeline, AChangeThatSetsNothingIsRefused) {
  Timeline timeline(Recipe{});
  Recipe empty_rule = Change("fprop", "bf16");
  empty_rule.layers.push_back({"blocks.0.*", {}});
  const absl::Status refused = Append(timeline, empty_rule, 5).status();
  EXPECT_EQ(refused,
            absl::InvalidArgumentError("change: the rule for layers 'blocks.0.*' sets no field"));
  EXPECT_EQ(timeline.latest(), 1);
  EXPECT_EQ(Append(timeline, Recipe{.preset = "nvfp4"}, 5).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(timeline.latest(), 1);
}

TEST(Timeline, RestoreBringsARecipeBackAndWithdrawsPendingRevisions) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  ASSERT_EQ(*Append(timeline, Change("fprop", "bf16"), 100), 2);
  ASSERT_EQ(*Append(timeline, Change("wgrad", "bf16"), 900), 3);
  EXPECT_EQ(timeline.Restore(2, 1, 300, 200, "ann", 5, "back").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(timeline.Restore(3, 9, 300, 200, "ann", 5, "back").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(timeline.Restore(3, 1, 199, 200, "ann", 5, "back").status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(*timeline.Restore(3, 1, 300, 200, "ann", 5, "back"), 4);
  EXPECT_THAT(Values(timeline.At(299).recipe), ElementsAre("bf16"));
  EXPECT_EQ(timeline.At(300).recipe, (Recipe{.preset = "nvfp4"}));
  EXPECT_EQ(timeline.At(300).author, "ann");
  EXPECT_EQ(timeline.NextSwitchAfter(300), -1);
  // A pending revision can be brought forward.
  ASSERT_EQ(*Append(timeline, Change("all", "bf16"), 500, 300), 5);
  ASSERT_EQ(*timeline.Restore(5, 5, 400, 300, "ann", 6, "sooner"), 6);
  EXPECT_THAT(Values(timeline.At(400).recipe), ElementsAre("bf16"));
  EXPECT_EQ(timeline.NextSwitchAfter(400), -1);
}

TEST(Timeline, AFactorOnTheLearningRateHoldsForLaterRevisionsAndGoesWithARestoredOne) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  const Recipe change = {.set = {{"fprop", "bf16"}}};
  ASSERT_TRUE(timeline.Append(-1, change, 50, 0, "ann", 0, "").ok());
  const absl::StatusOr<int64_t> number = timeline.Append(-1, change, 20, 0, "guard", 0, "");
  ASSERT_TRUE(number.ok());
  ASSERT_TRUE(timeline.ScaleLearningRate(*number, 0.25).ok());
  EXPECT_EQ(timeline.At(19).lr_scale, 1);
  EXPECT_EQ(timeline.At(20).lr_scale, 0.25);
  EXPECT_EQ(timeline.At(50).lr_scale, 0.25);  // rebased
  ASSERT_TRUE(timeline.Append(-1, change, 60, 0, "ann", 0, "").ok());
  EXPECT_EQ(timeline.At(60).lr_scale, 0.25);
  ASSERT_TRUE(timeline.Restore(-1, 1, 70, 0, "ann", 0, "").ok());
  EXPECT_EQ(timeline.At(70).lr_scale, 1);
  for (const double bad : {0.0, -1.0, 1.5}) {
    EXPECT_EQ(timeline.ScaleLearningRate(1, bad).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(timeline.ScaleLearningRate(99, 0.5).code(), absl::StatusCode::kNotFound);
}

TEST(Timeline, ARevisionForAnotherRateHasTheSameRecipeAndRebasesPendingOnes) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  const Recipe change = {.set = {{"fprop", "bf16"}}};
  ASSERT_TRUE(timeline.Append(-1, change, 50, 0, "ann", 0, "").ok());
  const absl::StatusOr<int64_t> number = timeline.Repeat(20, 10, "guard", 7, "rolled back");
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_EQ(*number, 3);
  ASSERT_TRUE(timeline.ScaleLearningRate(*number, 0.5).ok());
  EXPECT_EQ(timeline.At(20).recipe, timeline.At(19).recipe);
  EXPECT_EQ(timeline.At(20).author, "guard");
  EXPECT_EQ(timeline.At(20).reason, "rolled back");
  EXPECT_EQ(timeline.At(50).number, 4);  // rebased
  EXPECT_EQ(timeline.At(50).recipe.set, change.set);
  EXPECT_EQ(timeline.At(50).lr_scale, 0.5);
  EXPECT_EQ(timeline.Repeat(9, 10, "guard", 7, "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Timeline, NormalisingRemovesOverriddenSettingsAndResolvesToTheSame) {
  const Outline outline = TestOutline("*-M-*-");
  const std::vector<Recipe> changes = {
      Change("fprop", "bf16"),
      Change("fprop.weight", "nvfp4"),
      Change("keep", "1+1"),
      {.layers = {{"mlp", {{"fprop", "mxfp8"}, {"wgrad", "bf16"}}}}},
      Change("fprop", "default"),
      {.layers = {{"mlp", {{"fprop", "nvfp4"}}}, {"attention", {{"fprop", "bf16"}}}}},
      Change("keep", "none"),
      Change("wgrad.hadamard", "off"),
  };
  // Every order of two and three of them, each after the other and repeated.
  Recipe recipe = {.preset = "nvfp4"};
  Recipe whole = recipe;  // with all changes appended, not normalised
  size_t settings = 0;
  for (size_t i = 0; i < 400; ++i) {
    const Recipe& change = changes[(i * i + i / 7) % changes.size()];
    recipe = ApplyOver(recipe, change);
    if (whole.layers.empty()) {
      whole.set.insert(whole.set.end(), change.set.begin(), change.set.end());
    } else if (!change.set.empty()) {
      whole.layers.push_back({"*", change.set});
    }
    whole.layers.insert(whole.layers.end(), change.layers.begin(), change.layers.end());
    const auto resolved = Resolve(recipe, outline, 0);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_TRUE(*resolved == *Resolve(whole, outline, 0)) << i;
    settings = recipe.set.size();
    for (const LayerRule& rule : recipe.layers) settings += rule.set.size();
    EXPECT_LE(settings, 12u);
    EXPECT_TRUE(Normalised(recipe) == recipe);
  }
}

TEST(Timeline, AChangeOverridesLayerRules) {
  const Outline outline = TestOutline("*-");
  const Recipe base = {.preset = "nvfp4-base", .layers = {{"mlp", {{"fprop", "mxfp8"}}}}};
  const ResolvedRecipe changed = *Resolve(ApplyOver(base, Change("fprop", "bf16")), outline, 0);
  for (const LayerRecipe& layer : changed.layers) {
    EXPECT_FALSE(layer[OperandRole::kFpropWeight].has_value());
    EXPECT_TRUE(layer[OperandRole::kWgradGradient].has_value());
  }
  const Recipe rule = {.layers = {{"attention", {{"wgrad", "bf16"}}}}};
  EXPECT_EQ(ApplyOver(base, rule).layers.size(), 2u);
  EXPECT_EQ(ApplyOver(base, rule).set, base.set);
  // The kept blocks can be changed, too.
  EXPECT_TRUE(Resolve(ApplyOver(base, Change("keep", "1+1")), outline, 0).ok());
}

TEST(Timeline, AChangeOfThePresetKeepsWhatIsSetOverIt) {
  const Recipe base = {
      .preset = "nvfp4", .set = {{"fprop", "bf16"}}, .layers = {{"mlp", {{"fprop", "mxfp8"}}}}};
  const Recipe changed = ApplyOver(base, Change("preset", "mxfp4"));
  EXPECT_EQ(changed.preset, "mxfp4");
  EXPECT_EQ(changed.set, base.set);
  EXPECT_EQ(changed.layers, base.layers);
  // Only of the whole recipe, not of some layers.
  const Recipe rule = {.layers = {{"attention", {{"preset", "mxfp4"}}}}};
  EXPECT_FALSE(Resolve(ApplyOver(base, rule), TestOutline("*-"), 0).ok());
}

TEST(Timeline, ARefusedRevisionNeverTakesEffectAndItsNumberIsNotReused) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  ASSERT_TRUE(Append(timeline, Change("fprop", "a"), 50).ok());
  ASSERT_TRUE(timeline.Refuse(2, "no memory").ok());
  EXPECT_EQ(timeline.At(50).number, 1);
  EXPECT_EQ(timeline.At(1000).number, 1);
  EXPECT_EQ(timeline.NextSwitchAfter(0), -1);
  EXPECT_EQ(timeline.latest(), 2);
  ASSERT_TRUE(timeline.Refuse(2, "another").ok());
  EXPECT_EQ(timeline.revisions()[1].refused, "no memory");
  // A change builds on the recipe in effect, and may begin before the refused one would have.
  EXPECT_EQ(*Append(timeline, Change("wgrad", "b"), 40), 3);
  EXPECT_EQ(timeline.At(60).number, 3);
  EXPECT_THAT(Values(timeline.At(60).recipe), ElementsAre("b"));
  const auto again = Timeline::FromRevisions(timeline.revisions());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(*again == timeline);
}

TEST(Timeline, RefusedRevisionsStayInPlaceWhenPendingOnesAreRebased) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  ASSERT_TRUE(Append(timeline, Change("fprop", "a"), 50).ok());
  ASSERT_TRUE(Append(timeline, Change("dgrad", "b"), 90).ok());
  ASSERT_TRUE(timeline.Refuse(3, "no memory").ok());
  EXPECT_EQ(*Append(timeline, Change("wgrad", "c"), 20), 4);
  std::vector<int64_t> numbers;
  for (const Revision& revision : timeline.revisions()) numbers.push_back(revision.number);
  EXPECT_THAT(numbers, ElementsAre(1, 3, 4, 5));
  EXPECT_EQ(timeline.At(20).number, 4);
  EXPECT_EQ(timeline.At(95).number, 5);
}

TEST(Timeline, InvalidRefusalsAndRestoresAreRefusedByNumber) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  ASSERT_TRUE(Append(timeline, Change("fprop", "a"), 50).ok());
  EXPECT_EQ(timeline.Refuse(1, "why").message(),
            "revision: 1 is the first, which cannot be refused");
  EXPECT_EQ(timeline.Refuse(3, "why").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(timeline.Refuse(2, "").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(timeline.Refuse(2, "no memory").ok());
  const auto restored = timeline.Restore(-1, 2, 60, 0, "test", 0, "");
  EXPECT_EQ(restored.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(restored.status().message()), HasSubstr("was refused (no memory)"));
}

TEST(Timeline, RevisionsThatBreakAnInvariantAreRefused) {
  const auto refusal = [](std::vector<Revision> revisions) {
    return std::string(Timeline::FromRevisions(std::move(revisions)).status().message());
  };
  EXPECT_TRUE(Timeline::FromRevisions({}).ok());
  EXPECT_TRUE(Timeline::FromRevisions({{.number = 3}, {.number = 7, .first_step = 5}}).ok());
  EXPECT_THAT(refusal({{.number = 0}}), HasSubstr("revisions[0].number: 0"));
  EXPECT_THAT(refusal({{.number = std::numeric_limits<int64_t>::max()}}),
              HasSubstr("revisions[0].number: 9223372036854775807"));
  EXPECT_THAT(refusal({{.number = 1, .first_step = 4}}), HasSubstr("revisions[0].first_step: 4"));
  EXPECT_THAT(refusal({{.number = 2}, {.number = 2}}), HasSubstr("revisions[1].number: 2"));
  EXPECT_THAT(refusal({{}, {.number = 2, .first_step = 9}, {.number = 3, .first_step = 8}}),
              HasSubstr("revisions[2].first_step: 8; allowed: 9"));
}

// Random histories of a job that runs steps while changes arrive.
class RandomHistory : public ::testing::TestWithParam<int> {
 protected:
  void ExpectConsistent() {
    const std::vector<Revision>& revisions = timeline_.revisions();
    ASSERT_EQ(revisions.front().first_step, 0);
    for (size_t i = 1; i < revisions.size(); ++i) {
      ASSERT_GT(revisions[i].number, revisions[i - 1].number);
      ASSERT_GE(revisions[i].first_step, revisions[i - 1].first_step);
    }
    // Walking from switch to switch visits every change of revision, and nothing in between.
    int64_t switch_at = timeline_.NextSwitchAfter(0);
    for (int64_t step = 1; step <= kSteps; ++step) {
      if (step == switch_at) {
        ASSERT_NE(timeline_.At(step).number, timeline_.At(step - 1).number);
        ASSERT_EQ(timeline_.At(step).first_step, step);
        switch_at = timeline_.NextSwitchAfter(step);
      } else {
        ASSERT_EQ(timeline_.At(step).number, timeline_.At(step - 1).number);
      }
    }
    ASSERT_EQ(switch_at, -1);
  }

  // Steps that have run keep their revision.
  void ExpectHistoryKept() {
    for (size_t step = 0; step < ran_.size(); ++step) {
      ASSERT_EQ(timeline_.At(static_cast<int64_t>(step)), ran_[step]) << step;
    }
  }

  void RunTo(int64_t next_step) {
    while (static_cast<int64_t>(ran_.size()) < next_step) {
      ran_.push_back(timeline_.At(static_cast<int64_t>(ran_.size())));
    }
  }

  int64_t next_step() const { return static_cast<int64_t>(ran_.size()); }

  static constexpr int64_t kSteps = 60;
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  Timeline timeline_{Recipe{.preset = "nvfp4"}};
  std::vector<Revision> ran_;  // by step
};

TEST_P(RandomHistory, EveryStepRunsUnderAllEarlierChangesInOrderOfAcceptance) {
  struct Accepted {
    int64_t first_step;
    Recipe change;
  };
  std::vector<Accepted> accepted;
  for (int i = 0; i < 12; ++i) {
    RunTo(next_step() + random_() % 4);
    Recipe change;
    const std::string value = "value-" + std::to_string(i);
    if (random_() % 3 != 0) change.set.push_back({"field", value});
    if (change.set.empty() || random_() % 4 == 0)
      change.layers.push_back({value, {{"field", value}}});
    const int64_t first_step = next_step() + random_() % 20;
    const int64_t latest = timeline_.latest();
    const Timeline before = timeline_;
    ASSERT_FALSE(timeline_.Append(latest + 1, change, first_step, next_step(), "", i, "").ok());
    ASSERT_FALSE(timeline_.Append(latest - 1, change, first_step, next_step(), "", i, "").ok());
    ASSERT_TRUE(timeline_ == before);
    const absl::StatusOr<int64_t> number =
        timeline_.Append(latest, change, first_step, next_step(), "", i, "");
    ASSERT_TRUE(number.ok()) << number.status();
    ASSERT_EQ(*number, latest + 1);
    ASSERT_EQ(timeline_.At(first_step).number, *number);
    accepted.push_back({first_step, change});
    ExpectConsistent();
    ExpectHistoryKept();
    for (int64_t step = 0; step <= kSteps; ++step) {
      Recipe expected = {.preset = "nvfp4"};
      for (const Accepted& one : accepted) {
        if (one.first_step <= step) expected = ApplyOver(expected, one.change);
      }
      ASSERT_EQ(timeline_.At(step).recipe, expected) << step;
    }
  }
}

TEST_P(RandomHistory, RestoresKeepStepsThatRanAndWithdrawPendingRevisions) {
  for (int i = 0; i < 12; ++i) {
    RunTo(next_step() + random_() % 4);
    const int64_t first_step = next_step() + random_() % 20;
    if (random_() % 3 != 0) {
      ASSERT_TRUE(
          Append(timeline_, Change("field", std::to_string(i)), first_step, next_step()).ok());
    } else {
      const std::vector<Revision>& all = timeline_.revisions();
      const Revision wanted = all[random_() % all.size()];
      ASSERT_TRUE(timeline_.Restore(-1, wanted.number, first_step, next_step(), "", i, "").ok());
      ASSERT_EQ(timeline_.At(first_step).recipe, wanted.recipe);
      ASSERT_EQ(timeline_.NextSwitchAfter(first_step), -1);
    }
    ExpectConsistent();
    ExpectHistoryKept();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHistory, ::testing::Range(0, 50));

TEST(PromotionTest, ItsLayersAreBf16FromItsFirstStepToBeforeItsEnd) {
  Timeline timeline({.preset = "nvfp4"});
  timeline.Promote({.first_step = 5, .end_step = 8, .layers = "mlp.down", .guard = "spike"});
  for (const int64_t step : {4, 8}) {
    EXPECT_TRUE(timeline.PromotedAt(step).empty()) << step;
    EXPECT_EQ(timeline.RecipeAt(step), timeline.At(step).recipe) << step;
  }
  for (const int64_t step : {5, 7}) {
    EXPECT_EQ(timeline.RecipeAt(step),
              (Recipe{.preset = "nvfp4", .layers = {{"mlp.down", {{"all", "bf16"}}}}}))
        << step;
  }
  EXPECT_EQ(timeline.latest(), 1);
}

TEST(PromotionTest, ItLiesOnTopOfARevisionThatBeginsDuringIt) {
  Timeline timeline({.preset = "nvfp4"});
  timeline.Promote({.first_step = 5, .end_step = 9, .layers = "mlp.down", .guard = "spike"});
  ASSERT_TRUE(timeline.Append(-1, {.set = {{"all", "mxfp8"}}}, 7, 6, "ann", 0, "").ok());
  EXPECT_EQ(timeline.RecipeAt(7).layers, (std::vector<LayerRule>{{"mlp.down", {{"all", "bf16"}}}}));
  EXPECT_EQ(timeline.RecipeAt(7).set, (std::vector<FieldSetting>{{"all", "mxfp8"}}));
}

TEST(PromotionTest, AnotherOfTheSameLayersMakesItLongerAndNoneThatHasEndedIsKept) {
  Timeline timeline({.preset = "nvfp4"});
  timeline.Promote({.first_step = 5, .end_step = 9, .layers = "mlp.down", .guard = "spike"});
  timeline.Promote({.first_step = 7, .end_step = 11, .layers = "mlp.down", .guard = "clipped"});
  ASSERT_EQ(timeline.promotions().size(), 1u);
  EXPECT_EQ(timeline.promotions()[0].first_step, 5);
  EXPECT_EQ(timeline.promotions()[0].end_step, 11);
  timeline.Promote({.first_step = 11, .end_step = 12, .layers = "mlp.up", .guard = "spike"});
  EXPECT_EQ(timeline.promotions().size(), 2u);
  timeline.Promote({.first_step = 20, .end_step = 21, .layers = "mlp.down", .guard = "spike"});
  ASSERT_EQ(timeline.promotions().size(), 1u);
  EXPECT_EQ(timeline.promotions()[0].first_step, 20);
}

TEST(PromotionTest, OneThatBeginsAtAStepCanBeWithdrawn) {
  Timeline timeline({.preset = "nvfp4"});
  timeline.Promote({.first_step = 5, .end_step = 9, .layers = "mlp.down", .guard = "spike"});
  timeline.Promote({.first_step = 6, .end_step = 9, .layers = "mlp.up", .guard = "spike"});
  EXPECT_EQ(timeline.WithdrawPromotions(6), (std::vector<std::string>{"mlp.up"}));
  EXPECT_TRUE(timeline.WithdrawPromotions(6).empty());
  EXPECT_EQ(timeline.PromotedAt(6), (std::vector<std::string>{"mlp.down"}));
}

TEST(PromotionTest, OneWithoutLayersOrStepsIsRefused) {
  const std::vector<Revision> revisions = Timeline({.preset = "nvfp4"}).revisions();
  EXPECT_FALSE(Timeline::FromRevisions(revisions, {{.first_step = 1, .end_step = 2}}).ok());
  EXPECT_FALSE(
      Timeline::FromRevisions(revisions, {{.first_step = 2, .end_step = 2, .layers = "*"}}).ok());
}

}  // namespace
}  // namespace nibble

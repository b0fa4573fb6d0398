// What the guards of a trainer do about a step, and that a run repeats it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kBadStep = 24;

JobSpec GuardedSpec() {
  JobSpec spec;
  spec.name = "test";
  spec.model = HybridSpec();
  spec.model.mamba_state = 8;
  spec.model.mamba_heads = 16;
  spec.model.mamba_head_dim = 4;
  spec.model.init_std = 0.05;
  spec.recipe.preset = "nvfp4-base";
  spec.data.train = {{.path = "none"}};
  spec.data.sequence = 32;
  spec.training.steps = 40;
  spec.training.batch = 2;
  spec.optimizer.lr = 1e-2;
  spec.optimizer.warmup_steps = 2;
  spec.optimizer.clip_norm = 0;
  spec.metrics.precision_every = 0;
  spec.guards.spike_window = 8;
  spec.guards.spike_z = 4;
  spec.guards.gradient_norm = SpikePolicy::kOff;
  spec.guards.underflow = spec.guards.clipped = OperandPolicy::kOff;
  spec.guards.promote_layers = "mlp.down";
  spec.guards.promote_steps = 2;
  return spec;
}

// The next token is this one plus one; in the bad steps it is another one.
absl::StatusOr<Batch> CountingBut(int64_t step, const JobSpec& spec, const std::set<int64_t>& bad) {
  Batch batch = *MakeBatch(MicroBatch(spec), spec.data.sequence);
  const int64_t next = bad.contains(step) ? 17 : 1;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    for (int64_t i = 0; i < batch.length; ++i) {
      const int64_t at = s * batch.length + i;
      const int64_t first = step * 7 + s * 5;
      batch.tokens[at] = static_cast<int32_t>((first + i) % spec.model.vocab);
      batch.targets[at] = static_cast<int32_t>((first + i + next) % spec.model.vocab);
    }
  }
  return batch;
}

struct GuardedRun {
  explicit GuardedRun(const JobSpec& s, std::set<int64_t> bad_steps = {kBadStep})
      : spec(s), bad(std::move(bad_steps)), device(2), collective(CreateLocal()) {
    parameters = *Parameters::Create(device.device(), *MakeOutline(spec.model), spec.training.seed);
    absl::StatusOr<std::unique_ptr<Trainer>> made = Trainer::Create(
        spec, {.device = device.device(), .collective = *collective, .parameters = *parameters});
    EXPECT_TRUE(made.ok()) << made.status();
    trainer = *std::move(made);
  }
  absl::Status Step(StepReport& report) {
    return trainer->Step([&](int64_t step, int64_t) { return CountingBut(step, spec, bad); },
                         report);
  }
  // Makes the steps before this one, in which no guard finds anything.
  std::vector<double> Until(int64_t step) {
    std::vector<double> losses;
    while (trainer->next_step() < step) {
      StepReport report;
      const absl::Status status = Step(report);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) break;
      EXPECT_TRUE(report.decisions.empty())
          << report.sample.step() << ": " << report.decisions[0].detail;
      losses.push_back(report.sample.loss());
    }
    return losses;
  }

  JobSpec spec;
  std::set<int64_t> bad;
  TestDevice device;
  std::unique_ptr<Collective> collective;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Trainer> trainer;
};

// The step with the spike.
StepReport SpikeOf(GuardedRun& run, absl::Status& status) {
  run.Until(kBadStep);
  StepReport report;
  status = run.Step(report);
  EXPECT_EQ(report.decisions.size(), 1u) << report.sample.loss();
  return report;
}

TEST(TrainerGuards, ASpikeIsOnlyReportedByDefault) {
  GuardedRun run(GuardedSpec());
  absl::Status status;
  const StepReport report = SpikeOf(run, status);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(report.sample.updated());
  ASSERT_EQ(report.decisions.size(), 1u);
  EXPECT_EQ(report.decisions[0].guard, "spike");
  EXPECT_EQ(report.decisions[0].action, "observed");
  EXPECT_GT(report.decisions[0].z, 4);
  EXPECT_THAT(report.decisions[0].detail, HasSubstr("is a spike: z "));
}

TEST(TrainerGuards, SpikesThatAreSkippedDoNotHarmTheRun) {
  const std::set<int64_t> bad = {kBadStep, kBadStep + 1, kBadStep + 2};
  const auto end = [&](SpikePolicy policy) {
    JobSpec spec = GuardedSpec();
    spec.guards.spike = policy;
    GuardedRun run(spec, bad);
    run.Until(kBadStep);
    StepReport report;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(run.Step(report).ok());
      EXPECT_EQ(report.sample.updated(), policy == SpikePolicy::kObserve) << i;
    }
    EXPECT_TRUE(run.Step(report).ok());
    return report.sample.loss();
  };
  GuardedRun undisturbed(GuardedSpec(), {});
  const double good = undisturbed.Until(kBadStep).back();
  EXPECT_LT(end(SpikePolicy::kSkip), 1.2 * good);
  EXPECT_GT(end(SpikePolicy::kObserve), 1.5 * good);
}

TEST(TrainerGuards, ASpikeOfTheGradientNormIsSkippedThoughTheLossIsNotWatched) {
  JobSpec spec = GuardedSpec();
  spec.guards.spike = SpikePolicy::kOff;
  spec.guards.gradient_norm = SpikePolicy::kSkip;
  spec.guards.gradient_norm_z = 6;
  GuardedRun run(spec);
  absl::Status status;
  const StepReport report = SpikeOf(run, status);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(report.sample.updated());
  ASSERT_EQ(report.decisions.size(), 1u);
  EXPECT_EQ(report.decisions[0].guard, "gradient-norm");
  EXPECT_EQ(report.decisions[0].action, "skipped");
  EXPECT_THAT(report.skip_reason, HasSubstr("gradient norm"));
}

TEST(TrainerGuards, APromotionBeginsInTheNextStepAndEndsByItself) {
  JobSpec spec = GuardedSpec();
  spec.guards.spike = SpikePolicy::kSkip;
  GuardedRun skipping(spec);
  spec.guards.spike = SpikePolicy::kPromote;
  GuardedRun promoting(spec);
  absl::Status status;
  EXPECT_FALSE(SpikeOf(skipping, status).sample.updated());
  const StepReport report = SpikeOf(promoting, status);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(report.sample.updated());
  EXPECT_EQ(report.decisions[0].action, "promoted");
  EXPECT_THAT(report.decisions[0].detail, HasSubstr("mlp.down in BF16 in steps 25 to 26"));
  const Timeline& timeline = promoting.trainer->timeline();
  EXPECT_THAT(timeline.PromotedAt(kBadStep), IsEmpty());
  EXPECT_THAT(timeline.PromotedAt(kBadStep + 1), ElementsAre("mlp.down"));
  EXPECT_THAT(timeline.PromotedAt(kBadStep + 3), IsEmpty());
  // The first promoted step has the same weights, multiplied in another format.
  StepReport a, b;
  ASSERT_TRUE(skipping.Step(a).ok());
  ASSERT_TRUE(promoting.Step(b).ok());
  EXPECT_NE(a.sample.loss(), b.sample.loss());
  EXPECT_EQ(b.sample.revision(), 1);
}

TEST(TrainerGuards, TheRunEndsWithTheExitThatRollsBackOrStops) {
  for (const auto& [policy, exit, action] :
       {std::tuple(SpikePolicy::kRollBack, TrainerExit::kGuardRollback, "roll_back"),
        std::tuple(SpikePolicy::kStop, TrainerExit::kGuardFail, "stopped")}) {
    JobSpec spec = GuardedSpec();
    spec.guards.spike = policy;
    GuardedRun run(spec);
    absl::Status status;
    const StepReport report = SpikeOf(run, status);
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_EQ(ExitOf(status), exit);
    EXPECT_THAT(std::string(status.message()), HasSubstr("step 24: loss "));
    EXPECT_FALSE(report.sample.updated());
    EXPECT_EQ(report.decisions[0].action, action);
    EXPECT_EQ(run.trainer->next_step(), kBadStep);
  }
}

TEST(TrainerGuards, AStepThatIsNotFinitePromotesOrRollsBackAsTheSpecSays) {
  JobSpec spec = GuardedSpec();
  spec.guards.non_finite = NonFinitePolicy::kPromote;
  GuardedRun run(spec, {});
  float& weight = run.parameters->weight(*run.trainer->outline().Find("blocks.1.mlp.up.weight"))[3];
  const float good = weight;
  weight = std::numeric_limits<float>::quiet_NaN();
  StepReport report;
  ASSERT_TRUE(run.Step(report).ok());
  EXPECT_FALSE(report.sample.updated());
  ASSERT_EQ(report.decisions.size(), 1u);
  EXPECT_EQ(report.decisions[0].guard, "non-finite");
  EXPECT_EQ(report.decisions[0].action, "promoted");
  EXPECT_THAT(run.trainer->timeline().PromotedAt(1), ElementsAre("mlp.down"));
  weight = good;
  run.trainer->WeightsWereWritten();
  ASSERT_TRUE(run.Step(report).ok());
  EXPECT_TRUE(report.sample.updated());

  spec.guards.non_finite = NonFinitePolicy::kRollBack;
  GuardedRun other(spec, {});
  other.parameters->weight(0)[0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ExitOf(other.Step(report)), TrainerExit::kGuardRollback);
}

TEST(TrainerGuards, LayersWithLargeErrorsArePromotedAfterASampledStep) {
  JobSpec spec = GuardedSpec();
  spec.metrics.precision_every = 4;
  spec.guards.relative_error_above = 0.01;
  GuardedRun observing(spec, {});
  StepReport report;
  ASSERT_TRUE(observing.Step(report).ok());
  ASSERT_EQ(report.decisions.size(), 1u);
  EXPECT_EQ(report.decisions[0].guard, "relative-error");
  EXPECT_EQ(report.decisions[0].action, "observed");
  EXPECT_EQ(report.decisions[0].operands.size(), 3u);
  EXPECT_THAT(observing.trainer->timeline().promotions(), IsEmpty());

  spec.guards.relative_error = OperandPolicy::kPromote;
  GuardedRun promoting(spec, {});
  const size_t linears = promoting.trainer->outline().linears.size();
  for (int64_t step = 0; step < 6; ++step) {
    EXPECT_EQ(promoting.trainer->timeline().PromotedAt(step).size(),
              step % 4 == 1 || step % 4 == 2 ? linears : 0)
        << step;
    ASSERT_TRUE(promoting.Step(report).ok());
    EXPECT_TRUE(report.sample.updated());
    EXPECT_EQ(report.decisions.size(), step % 4 == 0 ? 1u : 0u) << step;
  }

  spec.guards.relative_error = OperandPolicy::kRollBack;
  GuardedRun ending(spec, {});
  const absl::Status status = ending.Step(report);
  EXPECT_EQ(ExitOf(status), TrainerExit::kGuardRollback);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("guards.relative_error: roll_back; step 0: relative_error above 0.01 in "));
  ASSERT_EQ(report.decisions.size(), 1u);
  EXPECT_EQ(report.decisions[0].layers.size(), linears);
  EXPECT_THAT(report.decisions[0].layers, Contains("blocks.1.mlp.up"));
  EXPECT_EQ(report.decisions[0].harmed_steps, 1);
}

TEST(TrainerGuards, StepsInARowWithFindingsAreCountedForARollback) {
  JobSpec spec = GuardedSpec();
  spec.guards.max_skips = 3;
  spec.guards.after_skips = SkipsPolicy::kRollBack;
  GuardedRun run(spec, {});
  StepReport report;
  ASSERT_TRUE(run.Step(report).ok());
  run.parameters->weight(*run.trainer->outline().Find("blocks.1.mlp.up.weight"))[3] =
      std::numeric_limits<float>::quiet_NaN();
  run.trainer->WeightsWereWritten();
  for (int64_t in_a_row = 1; in_a_row <= 3; ++in_a_row) {
    EXPECT_EQ(run.Step(report).ok(), in_a_row < 3);
    ASSERT_EQ(report.decisions.size(), 1u);
    EXPECT_EQ(report.decisions[0].harmed_steps, in_a_row);
  }
  EXPECT_EQ(report.decisions[0].action, "roll_back");
}

TEST(TrainerGuards, TheRevisionsFactorScalesTheLearningRateFromItsFirstStep) {
  GuardedRun whole(GuardedSpec(), {});
  GuardedRun lowered(GuardedSpec(), {});
  Timeline& timeline = lowered.trainer->timeline();
  const Recipe same = {.set = {{"all", "nvfp4"}}};
  const absl::StatusOr<int64_t> number = timeline.Append(-1, same, 5, 0, "guard", 0, "");
  ASSERT_TRUE(number.ok()) << number.status();
  ASSERT_TRUE(timeline.ScaleLearningRate(*number, 0.25).ok());
  for (int64_t step = 0; step < 8; ++step) {
    StepReport a, b;
    ASSERT_TRUE(whole.Step(a).ok());
    ASSERT_TRUE(lowered.Step(b).ok());
    EXPECT_EQ(b.sample.learning_rate(), a.sample.learning_rate() * (step < 5 ? 1 : 0.25));
    // The loss of a step depends on the updates before it.
    EXPECT_EQ(a.sample.loss() == b.sample.loss(), step <= 5) << step;
  }
}

TEST(TrainerGuards, AnotherTrainerAtTheSamePositionDecidesAlike) {
  JobSpec spec = GuardedSpec();
  spec.guards.spike = SpikePolicy::kPromote;
  spec.guards.gradient_norm = SpikePolicy::kObserve;
  GuardedRun whole(spec, {kBadStep});
  GuardedRun resumed(spec, {kBadStep});
  whole.Until(kBadStep);
  resumed.Until(kBadStep);
  // The guards' state is restored; weights and moments are the same already.
  const Trainer::Position position = whole.trainer->position();
  EXPECT_EQ(position.norm_guard.values.size(), 8u);
  ASSERT_TRUE(resumed.trainer->Restore(position).ok());
  for (int64_t step = kBadStep; step < kBadStep + 6; ++step) {
    StepReport a, b;
    ASSERT_TRUE(whole.Step(a).ok());
    ASSERT_TRUE(resumed.Step(b).ok());
    EXPECT_EQ(a.sample.loss(), b.sample.loss()) << step;
    ASSERT_EQ(a.decisions.size(), b.decisions.size()) << step;
    EXPECT_EQ(whole.trainer->timeline(), resumed.trainer->timeline()) << step;
    // Also from within the promotion.
    ASSERT_TRUE(resumed.trainer->Restore(resumed.trainer->position()).ok());
  }
  EXPECT_THAT(whole.trainer->timeline().promotions(), Not(IsEmpty()));
}

}  // namespace
}  // namespace nibble

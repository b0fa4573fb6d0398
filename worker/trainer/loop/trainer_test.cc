#include "worker/trainer/loop/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

constexpr int64_t kSteps = 12;

// Learns to count: the next token is this one plus one.
absl::StatusOr<Batch> Counting(int64_t step, int64_t micro, const JobSpec& spec) {
  Batch batch = *MakeBatch(MicroBatch(spec), spec.data.sequence);
  for (int64_t s = 0; s < batch.sequences; ++s) {
    for (int64_t i = 0; i < batch.length; ++i) {
      const int64_t at = s * batch.length + i;
      const int64_t first = step * 7 + micro * 3 + s * 5;
      batch.tokens[at] = static_cast<int32_t>((first + i) % spec.model.vocab);
      batch.targets[at] = static_cast<int32_t>((first + i + 1) % spec.model.vocab);
    }
  }
  return batch;
}

JobSpec Spec(const std::string& preset = "nvfp4") {
  JobSpec spec;
  spec.name = "test";
  spec.model = HybridSpec();
  spec.model.mamba_state = 8;
  spec.model.mamba_heads = 16;
  spec.model.mamba_head_dim = 4;
  spec.model.init_std = 0.05;
  spec.recipe.preset = preset;
  spec.data.train = {{.path = "none"}};
  spec.data.sequence = 32;
  spec.training.steps = kSteps;
  spec.training.batch = 4;
  spec.training.micro_batch = 2;
  spec.optimizer.lr = 1e-2;
  spec.optimizer.warmup_steps = 2;
  spec.metrics.precision_every = 4;
  return spec;
}

struct Rig {
  explicit Rig(const JobSpec& s, size_t memory_bytes = 0)
      : spec(s), device(2, memory_bytes, [this] { return now += 1.0; }), collective(CreateLocal()) {
    parameters = *Parameters::Create(device.device(), *MakeOutline(spec.model), spec.training.seed);
    absl::StatusOr<std::unique_ptr<Trainer>> made = Trainer::Create(
        spec, {.device = device.device(), .collective = *collective, .parameters = *parameters});
    EXPECT_TRUE(made.ok()) << made.status();
    trainer = *std::move(made);
  }
  absl::Status Step(StepReport& report) {
    return trainer->Step([&](int64_t step, int64_t micro) { return Counting(step, micro, spec); },
                         report);
  }
  std::vector<double> Losses(int64_t steps) {
    std::vector<double> losses;
    for (int64_t i = 0; i < steps; ++i) {
      StepReport report;
      const absl::Status status = Step(report);
      EXPECT_TRUE(status.ok()) << status;
      losses.push_back(report.sample.loss());
    }
    return losses;
  }

  JobSpec spec;
  double now = 0;
  TestDevice device;
  std::unique_ptr<Collective> collective;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Trainer> trainer;
};

TEST(Trainer, LearnsAndGivesTheSameLossesTwice) {
  const std::vector<double> losses = Rig(Spec()).Losses(kSteps);
  EXPECT_NEAR(losses.front(), std::log(48.0), 0.5);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
  EXPECT_EQ(losses, Rig(Spec()).Losses(kSteps));
}

TEST(Trainer, SamplingPrecisionChangesNoLoss) {
  JobSpec silent = Spec();
  silent.metrics.precision_every = 0;
  EXPECT_EQ(Rig(Spec()).Losses(kSteps), Rig(silent).Losses(kSteps));
}

TEST(Trainer, RecomputingChangesNoLoss) {
  JobSpec again = Spec();
  again.training.recompute = JobRecompute::kBlocks;
  EXPECT_EQ(Rig(Spec()).Losses(kSteps), Rig(again).Losses(kSteps));
}

// A trainer that is restored to where it stands makes its working copies from the weights.
TEST(Trainer, WorkingCopiesOfTheUpdateAreThoseThatTheWeightsWouldGive) {
  for (const char* preset : {"bf16", "nvfp4", "nvfp4-base", "mxfp8", "fp4-zhou-token"}) {
    for (const bool tied : {false, true}) {
      JobSpec spec = Spec(preset);
      spec.model.tied_head = tied;
      spec.model.mamba_state = 12;  // makes every dimension a multiple of MXFP8's 32
      Rig kept(spec), anew(spec);
      for (int64_t step = 0; step < 6; ++step) {
        StepReport a, b;
        ASSERT_TRUE(anew.trainer->Restore(anew.trainer->position()).ok());
        ASSERT_TRUE(kept.Step(a).ok());
        ASSERT_TRUE(anew.Step(b).ok());
        EXPECT_EQ(a.sample.loss(), b.sample.loss()) << preset << ", step " << step;
        ASSERT_EQ(a.figures.size(), b.figures.size());
        for (size_t i = 0; i < a.figures.size(); ++i) {
          EXPECT_EQ(std::memcmp(&a.figures[i].head, &b.figures[i].head, sizeof(QuantHead)), 0)
              << preset << ", step " << step << ", figure " << i;
        }
      }
      EXPECT_EQ(std::memcmp(kept.parameters->weights(), anew.parameters->weights(),
                            kept.parameters->elements() * sizeof(float)),
                0);
    }
  }
}

// What is written over a weight behind the trainer's back reaches a step only after a restore.
TEST(Trainer, AStepReadsTheWorkingCopiesThatTheUpdateBeforeItWrote) {
  for (const bool restored : {false, true}) {
    Rig plain(Spec("bf16")), changed(Spec("bf16"));
    EXPECT_EQ(plain.Losses(1), changed.Losses(1));
    changed.parameters->weight(changed.parameters->outline().linears[0].weight)[0] += 1;
    if (restored) {
      ASSERT_TRUE(changed.trainer->Restore(changed.trainer->position()).ok());
    }
    EXPECT_EQ(plain.Losses(1) == changed.Losses(1), !restored);
  }
}

TEST(Trainer, AnotherSeedGivesOtherLosses) {
  JobSpec other = Spec();
  other.training.seed = 2;
  EXPECT_NE(Rig(Spec()).Losses(2), Rig(other).Losses(2));
}

TEST(Trainer, APlannedChangeTakesForceAtItsStepAndNotBefore) {
  JobSpec changed = Spec();
  changed.changes = {{.at = {.kind = EffectiveAt::Kind::kStep, .count = 5},
                      .set = {{"fprop", "bf16"}},
                      .layers = {},
                      .reason = "test"}};
  Rig plain(Spec());
  Rig switched(changed);
  for (int64_t step = 0; step < kSteps; ++step) {
    StepReport a, b;
    ASSERT_TRUE(plain.Step(a).ok());
    ASSERT_TRUE(switched.Step(b).ok());
    EXPECT_EQ(b.sample.revision(), step < 5 ? 1 : 2);
    if (step < 5) {
      EXPECT_EQ(a.sample.loss(), b.sample.loss()) << step;
    } else {
      EXPECT_NE(a.sample.loss(), b.sample.loss()) << step;
    }
  }
}

TEST(Trainer, ARecipeThatMemoryCannotHoldIsRefusedAndTheRunContinuesAsIfNobodyHadAskedForIt) {
  const auto in_use = [](const std::string& format) {
    JobSpec spec = Spec();
    spec.recipe.set = {{"all", format}};
    return Rig(spec, size_t{1} << 40).device.backend->memory().meter().used();
  };
  const size_t plain = in_use("bf16"), quantised = in_use("nvfp4");
  ASSERT_NE(plain, quantised);
  JobSpec spec = Spec();
  spec.recipe.set = {{"all", plain < quantised ? "bf16" : "nvfp4"}};
  const Recipe larger = {.set = {{"all", plain < quantised ? "nvfp4" : "bf16"}}};
  const std::vector<double> undisturbed = Rig(spec).Losses(kSteps);

  Rig rig(spec, (plain + quantised) / 2);
  std::vector<double> losses = rig.Losses(5);
  Timeline& timeline = rig.trainer->timeline();
  ASSERT_TRUE(timeline.Append(-1, larger, 5, 5, "test", 0, "").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(rig.trainer->PrepareRecipe()));
  ASSERT_TRUE(timeline.Refuse(2, "no memory").ok());
  const absl::Status back = rig.trainer->PrepareRecipe();
  ASSERT_TRUE(back.ok()) << back;
  // A change that asks for no more memory is made.
  ASSERT_TRUE(
      timeline.Append(-1, {.set = {{"all", spec.recipe.set[0].value}}}, 9, 5, "test", 0, "").ok());
  for (const double loss : rig.Losses(kSteps - 5)) losses.push_back(loss);
  EXPECT_EQ(losses, undisturbed);
}

TEST(Trainer, AModelThatDoesNotFitIsRefusedWithTheSizesAndTheNearestSettingsThatDo) {
  JobSpec spec = Spec("bf16");
  spec.training.micro_batch = 4;
  const Rig roomy(spec, size_t{1} << 40);
  const MemoryPlan plan = roomy.trainer->memory();
  const size_t used = roomy.device.backend->memory().meter().used();
  EXPECT_EQ(plan.total(), used);
  EXPECT_LT(plan.fixed, used / 4) << "batches and heads are small beside the plan";

  const auto refused = [&](const JobSpec& of, size_t memory_bytes) {
    TestDevice device(2, memory_bytes);
    const std::unique_ptr<Collective> collective = CreateLocal();
    const auto parameters =
        *Parameters::Create(device.device(), *MakeOutline(of.model), of.training.seed);
    return Trainer::Create(
               of,
               {.device = device.device(), .collective = *collective, .parameters = *parameters})
        .status();
  };
  const absl::Status tight = refused(spec, used - plan.activations / 3);
  EXPECT_TRUE(absl::IsResourceExhausted(tight)) << tight;
  EXPECT_EQ(ExitOf(tight), TrainerExit::kSpec);
  const std::string message(tight.message());
  EXPECT_NE(message.find("micro-batches of 4 x 32 tokens take"), std::string::npos) << message;
  EXPECT_NE(message.find("training.micro_batch: 2 ("), std::string::npos) << message;
  // The suggested setting fits.
  spec.training.micro_batch = 2;
  EXPECT_TRUE(refused(spec, used - plan.activations / 3).ok());

  spec.training.micro_batch = 1;
  const absl::Status hopeless = refused(spec, plan.weights + plan.gradients + plan.moments + 4096);
  EXPECT_TRUE(absl::IsResourceExhausted(hopeless)) << hopeless;
}

TEST(Trainer, ProductsAreNamedWithTheirPathAndNativeOnesAreRefusedWhereThereAreNone) {
  Rig rig(Spec("nvfp4"));
  int64_t linears = 0;
  for (const ProductUse& product : rig.trainer->model().Products()) {
    EXPECT_FALSE(product.native);
    EXPECT_FALSE(product.reason.empty());
    EXPECT_EQ(product.path.starts_with("emulated "), product.quantized) << product.path;
    linears += product.linears;
  }
  EXPECT_EQ(linears, kLinearGemms * static_cast<int64_t>(rig.trainer->outline().linears.size()));

  JobSpec spec = Spec("nvfp4");
  spec.training.products = JobProducts::kNative;
  spec.resources.device = JobDevice::kCuda;
  const absl::Status refused = Trainer::Create(spec, {.device = rig.device.device(),
                                                      .collective = *rig.collective,
                                                      .parameters = *rig.parameters})
                                   .status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_NE(refused.message().find("training.products: native, but fprop of "), std::string::npos)
      << refused;
}

TEST(Trainer, ATimelineWhoseRefusedRecipesNoModelCouldRunIsTakenUp) {
  Rig rig(Spec());
  Trainer::Position position = rig.trainer->position();
  const Recipe unfit = {.layers = {{"blocks.99.mlp.up", {{"fprop", "bf16"}}}}};
  ASSERT_TRUE(position.timeline.Append(-1, unfit, 5, 0, "test", 0, "").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(rig.trainer->Restore(position)));
  ASSERT_TRUE(position.timeline.Refuse(2, "no such layer").ok());
  const absl::Status restored = rig.trainer->Restore(position);
  EXPECT_TRUE(restored.ok()) << restored;
}

TEST(Trainer, FiguresComeOnSampledStepsOnly) {
  Rig rig(Spec("nvfp4-base"));
  for (int64_t step = 0; step < 6; ++step) {
    StepReport report;
    ASSERT_TRUE(rig.Step(report).ok());
    if (step % 4 != 0) {
      EXPECT_TRUE(report.figures.empty()) << step;
      continue;
    }
    // Six operands a layer, each with its statistics.
    ASSERT_EQ(report.figures.size(), 6 * rig.trainer->outline().linears.size());
    for (const OperandFigures& f : report.figures) {
      EXPECT_GT(f.head.stats.nonzero, 0u) << f.linear << " " << OperandRoleName(f.role);
    }
  }
}

TEST(Trainer, ANumberThatIsNoneSkipsTheUpdateAndNamesItsPlace) {
  Rig rig(Spec("nvfp4-base"));
  const Outline& outline = rig.trainer->outline();
  const int64_t bad = *outline.Find("blocks.1.mlp.up.weight");
  float& weight = rig.parameters->weight(bad)[3];
  const float good = weight;
  weight = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> before(rig.parameters->weights(),
                                  rig.parameters->weights() + rig.parameters->elements());
  StepReport report;
  ASSERT_TRUE(rig.Step(report).ok());
  EXPECT_FALSE(report.sample.updated());
  ASSERT_FALSE(report.bad_operands.empty());
  const bool named = std::any_of(report.bad_operands.begin(), report.bad_operands.end(),
                                 [](const BadOperand& b) { return b.linear == "blocks.1.mlp.up"; });
  EXPECT_TRUE(named);
  // Bit by bit, since NaN equals nothing.
  EXPECT_EQ(0,
            std::memcmp(before.data(), rig.parameters->weights(), before.size() * sizeof(float)));
  weight = good;
  rig.trainer->WeightsWereWritten();
  ASSERT_TRUE(rig.Step(report).ok());
  EXPECT_TRUE(report.sample.updated());
}

TEST(Trainer, WithThePolicyToStopABadNumberEndsTheRun) {
  JobSpec spec = Spec();
  spec.guards.non_finite = NonFinitePolicy::kStop;
  Rig rig(spec);
  rig.parameters->weight(0)[0] = std::numeric_limits<float>::infinity();
  StepReport report;
  const absl::Status status = rig.Step(report);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(status.message().find("step 0"), absl::string_view::npos);
  EXPECT_EQ(rig.trainer->next_step(), 0);
}

TEST(Trainer, SkippedStepsInARowHaveABoundAfterWhichTheSpecSaysWhatHappens) {
  const std::pair<SkipsPolicy, TrainerExit> policies[] = {
      {SkipsPolicy::kPause, TrainerExit::kGuardPause},
      {SkipsPolicy::kRollBack, TrainerExit::kGuardRollback},
      {SkipsPolicy::kFail, TrainerExit::kGuardFail}};
  for (const auto& [policy, exit] : policies) {
    JobSpec spec = Spec();
    spec.guards.max_skips = 3;
    spec.guards.after_skips = policy;
    Rig rig(spec);
    // A weight of a layer that every token passes.
    float& weight =
        rig.parameters->weight(*rig.trainer->outline().Find("blocks.1.mlp.up.weight"))[3];
    const float good = weight;
    StepReport report;
    // An update begins the count anew.
    weight = std::numeric_limits<float>::infinity();
    rig.trainer->WeightsWereWritten();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(rig.Step(report).ok());
    EXPECT_EQ(rig.trainer->skipped_in_a_row(), 2);
    weight = good;
    rig.trainer->WeightsWereWritten();
    ASSERT_TRUE(rig.Step(report).ok());
    EXPECT_EQ(rig.trainer->skipped_in_a_row(), 0);
    weight = std::numeric_limits<float>::infinity();
    rig.trainer->WeightsWereWritten();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(rig.Step(report).ok());
    const absl::Status status = rig.Step(report);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ExitOf(status), exit);
    EXPECT_NE(status.message().find("guards.max_skips: 3 steps in a row"), absl::string_view::npos)
        << status;
    EXPECT_TRUE(report.last_skip);
  }
}

TEST(Trainer, ValidationLeavesTrainingAsItWas) {
  Rig plain(Spec());
  Rig validated(Spec());
  const std::vector<double> expected = plain.Losses(4);
  std::vector<double> got = validated.Losses(2);
  const Trainer::BatchSource batches = [&](int64_t step, int64_t micro) {
    return Counting(step + 100, micro, validated.spec);
  };
  const absl::StatusOr<double> loss = validated.trainer->Validate(batches, 2);
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_GT(*loss, 0);
  for (const double l : validated.Losses(2)) got.push_back(l);
  EXPECT_EQ(got, expected);
}

TEST(Trainer, TheTimeOfAStepIsTheSumOfItsParts) {
  Rig rig(Spec());
  StepReport report;
  ASSERT_TRUE(rig.Step(report).ok());
  EXPECT_EQ(report.sample.update_seconds(), 0);
  ASSERT_TRUE(rig.Step(report).ok());
  const v1::StepSample& s = report.sample;
  const double parts = s.data_seconds() + s.weights_seconds() + s.forward_seconds() +
                       s.backward_seconds() + s.reduce_seconds() + s.update_seconds();
  EXPECT_GT(s.forward_seconds(), 0);
  EXPECT_GT(s.backward_seconds(), 0);
  EXPECT_DOUBLE_EQ(parts, s.step_seconds());
  // Every event takes a second of this clock: those between the parts of two micro-batches, of the
  // reduction and of the update, and a few within them.
  EXPECT_GE(s.step_seconds(), 2 * 4 + 2);
  // The update of the previous step.
  EXPECT_EQ(s.update_seconds(), 1);
}

TEST(Trainer, ABatchOfAnotherShapeIsRefused) {
  Rig rig(Spec());
  StepReport report;
  const absl::Status status =
      rig.trainer->Step([](int64_t, int64_t) { return MakeBatch(1, 8); }, report);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble

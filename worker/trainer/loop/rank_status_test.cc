#include "worker/trainer/loop/rank_status.h"

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/link/link_messages.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/loop/run_reporter.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

JobSpec SmallSpec() {
  JobSpec spec;
  spec.name = "test";
  spec.model = HybridSpec();
  spec.model.mamba_state = 8;
  spec.model.mamba_heads = 16;
  spec.model.mamba_head_dim = 4;
  spec.recipe.preset = "nvfp4";
  spec.data.train = {{.path = "none"}};
  spec.data.sequence = 32;
  spec.training.steps = 4;
  spec.training.batch = 2;
  spec.training.micro_batch = 2;
  spec.metrics.precision_every = 2;
  return spec;
}

// A trainer whose clock advances by a second whenever it is read.
class RankStatusTest : public testing::Test {
 protected:
  RankStatusTest() : collective_(CreateLocal()) {
    parameters_ =
        *Parameters::Create(device_.device(), *MakeOutline(spec_.model), spec_.training.seed);
    auto made = Trainer::Create(
        spec_,
        {.device = device_.device(), .collective = *collective_, .parameters = *parameters_});
    EXPECT_TRUE(made.ok()) << made.status();
    trainer_ = *std::move(made);
  }
  StepReport Step() {
    StepReport report;
    const absl::Status status = trainer_->Step(
        [this](int64_t, int64_t) { return MakeBatch(MicroBatch(spec_), spec_.data.sequence); },
        report);
    EXPECT_TRUE(status.ok()) << status;
    return report;
  }
  std::vector<link::v1::PrecisionSample> Precision(const StepReport& report) const {
    return PrecisionOf(report, trainer_->outline(), trainer_->timeline());
  }

  const JobSpec spec_ = SmallSpec();
  double now_ = 0;
  TestDevice device_{2, 0, [this] { return now_ += 1.0; }};
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Trainer> trainer_;
  RankStatus status_{nullptr, [this] { return now_; }};
};

TEST_F(RankStatusTest, TotalsGrowAndOtherFieldsAreOfTheNewestStep) {
  const StepReport first = Step();
  const StepReport second = Step();
  status_.AddStep(first, {});
  status_.AddStep(second, {});
  const link::v1::StepTotals& totals = status_.report().totals();
  EXPECT_EQ(totals.steps(), 2);
  EXPECT_EQ(totals.tokens(), 2 * 2 * 32);
  EXPECT_EQ(totals.skipped(), 0);
  EXPECT_EQ(totals.sums().step_seconds(),
            first.sample.step_seconds() + second.sample.step_seconds());
  EXPECT_EQ(totals.sums().backward_seconds(),
            first.sample.backward_seconds() + second.sample.backward_seconds());
  EXPECT_GT(totals.sums().reduce_seconds(), 0);
  const v1::StepSample& sample = status_.report().sample();
  EXPECT_EQ(sample.step(), 1);
  EXPECT_EQ(sample.tokens(), 2 * 2 * 32);
  EXPECT_EQ(sample.loss(), second.sample.loss());
  EXPECT_EQ(sample.revision(), 1);
  EXPECT_EQ(sample.revision_first_step(), 0);
  EXPECT_EQ(sample.tokens_per_second(), 2 * 32 / sample.step_seconds());
}

TEST_F(RankStatusTest, PrecisionIsOfTheSampledStepAndOfEveryOperand) {
  const StepReport sampled = Step();
  status_.AddStep(sampled, Precision(sampled));
  const auto& precision = status_.report().precision();
  ASSERT_EQ(static_cast<size_t>(precision.size()), sampled.figures.size());
  ASSERT_GT(precision.size(), 6);
  std::set<std::string> seen;
  for (const link::v1::PrecisionSample& sample : precision) {
    EXPECT_TRUE(seen.insert(sample.layer() + " " + sample.operand()).second);
    EXPECT_EQ(sample.step(), 0);
    EXPECT_TRUE(std::isfinite(sample.relative_error()));
  }
  EXPECT_EQ(CheckReport(status_.report()), absl::OkStatus());
  const StepReport next = Step();
  status_.AddStep(next, Precision(next));
  EXPECT_TRUE(status_.report().precision().empty());
}

StepReport Decided(int64_t step, const std::string& guard, const std::string& action,
                   std::vector<std::string> operands = {}) {
  StepReport report;
  report.sample.set_step(step);
  report.decisions = {
      {.guard = guard, .action = action, .detail = "too much", .operands = std::move(operands)}};
  return report;
}

TEST_F(RankStatusTest, DecisionsOfGuardsAreCountedAndTheFirstOfEachIncidentIsSent) {
  for (const int64_t step : {10, 11, 12, 40})
    status_.AddStep(Decided(step, "spike", "observed"), {});
  status_.AddStep(Decided(41, "spike", "promoted"), {});
  status_.AddStep(Decided(42, "underflow", "observed", {"mlp.up fprop.weight: 0.9"}), {});
  status_.AddStep(Decided(43, "underflow", "promoted", {"mlp.up fprop.weight: 0.9"}), {});
  GuardSpec guards;
  guards.spike = SpikePolicy::kPromote;
  guards.underflow = guards.clipped = OperandPolicy::kOff;
  status_.AddGuards(guards);
  std::map<std::string, int64_t> totals;
  for (const link::v1::GuardTotal& total : status_.report().guards()) {
    totals[total.guard() + " " + total.action()] = total.decisions();
  }
  EXPECT_EQ(totals, (std::map<std::string, int64_t>{{"non-finite skipped", 0},
                                                    {"gradient-norm observed", 0},
                                                    {"relative-error observed", 0},
                                                    {"spike observed", 4},
                                                    {"spike promoted", 1},
                                                    {"underflow observed", 1},
                                                    {"underflow promoted", 1}}));
  std::vector<int64_t> steps;
  for (const v1::GuardDecision& decision : status_.report().decided()) {
    steps.push_back(decision.step());
    EXPECT_EQ(decision.detail(), "too much");
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{10, 40, 41, 43}));
  EXPECT_EQ(CheckReport(status_.report()), absl::OkStatus());
  for (int64_t step = 100; step < 10'000; step += 100) {
    status_.AddStep(Decided(step, "spike", "observed"), {});
  }
  EXPECT_EQ(status_.report().decided_size(), kMaxDecisions);
  EXPECT_EQ(status_.report().decided().rbegin()->step(), 9900);
}

TEST_F(RankStatusTest, LongNamesAndTooManySamplesAreCut) {
  link::v1::PrecisionSample sample;
  sample.set_layer(std::string(kMaxLayerNameBytes + 1, 'x'));
  status_.AddStep(Step(), std::vector<link::v1::PrecisionSample>(kMaxPrecisionSamples + 1, sample));
  EXPECT_EQ(CheckReport(status_.report()), absl::OkStatus());
  EXPECT_EQ(status_.report().precision_size(), kMaxPrecisionSamples);
}

TEST_F(RankStatusTest, ASkippedUpdateIsCounted) {
  StepReport report = Step();
  report.sample.set_updated(false);
  status_.AddStep(report, {});
  EXPECT_EQ(status_.report().totals().skipped(), 1);
  EXPECT_EQ(status_.report().totals().steps(), 1);
  EXPECT_FALSE(status_.report().sample().updated());
}

TEST_F(RankStatusTest, ARevisionIsReportedOnceAndTheNewestAreKept) {
  EXPECT_TRUE(status_.AddRevision(1, 0));
  EXPECT_FALSE(status_.AddRevision(1, 0));
  for (int64_t i = 2; i <= 20; ++i) EXPECT_TRUE(status_.AddRevision(i, 10 * i));
  const auto& begun = status_.report().begun();
  ASSERT_EQ(begun.size(), kMaxRevisionsBegun);
  EXPECT_EQ(begun[0].revision(), 5);
  EXPECT_EQ(begun.rbegin()->revision(), 20);
  EXPECT_EQ(begun.rbegin()->first_step(), 200);
  EXPECT_EQ(CheckReport(status_.report()), absl::OkStatus());
}

TEST_F(RankStatusTest, TheNewestRefusalsAreKept) {
  for (int64_t i = 2; i <= 20; ++i) status_.AddRefusal(i, "no memory");
  const auto& refused = status_.report().refused();
  ASSERT_EQ(refused.size(), kMaxRevisionsRefused);
  EXPECT_EQ(refused.rbegin()->revision(), 20);
  EXPECT_EQ(refused.rbegin()->reason(), "no memory");
  EXPECT_EQ(CheckReport(status_.report()), absl::OkStatus());
}

TEST_F(RankStatusTest, OfARunThatResumesTheRevisionsThatHaveBegunAreReportedAgain) {
  Timeline timeline = trainer_->timeline();
  ASSERT_TRUE(timeline.Append(-1, {.set = {{"fprop", "bf16"}}}, 2, 0, "test", 0, "").ok());
  ASSERT_TRUE(timeline.Append(-1, {.set = {{"fprop", "nvfp4"}}}, 3, 0, "test", 0, "").ok());
  ASSERT_TRUE(timeline.Refuse(3, "no memory").ok());
  ASSERT_TRUE(timeline.Append(-1, {.set = {{"dgrad", "bf16"}}}, 9, 0, "test", 0, "").ok());
  status_.AddHistory(timeline, 5);
  ASSERT_EQ(status_.report().begun_size(), 1);
  EXPECT_EQ(status_.report().begun(0).revision(), 2);
  ASSERT_EQ(status_.report().refused_size(), 1);
  EXPECT_EQ(status_.report().refused(0).revision(), 3);
}

TEST_F(RankStatusTest, StoredAndFailedCheckpointsAreCounted) {
  status_.AddCheckpoint({.step = 4, .bytes = 100, .stall_seconds = 0.5, .write_seconds = 2}, 7);
  status_.AddCheckpoint({.step = 8, .status = absl::ResourceExhaustedError("full"), .bytes = 100},
                        9);
  const link::v1::CheckpointTotals& totals = status_.report().checkpoints();
  EXPECT_EQ(totals.stored(), 1);
  EXPECT_EQ(totals.failed(), 1);
  EXPECT_EQ(totals.bytes(), 100);
  EXPECT_EQ(totals.stall_seconds(), 0.5);
  EXPECT_EQ(totals.write_seconds(), 2);
  EXPECT_EQ(status_.report().checkpoint_request(), 7) << "the failed one answers no request";
}

}  // namespace
}  // namespace nibble

#include "worker/trainer/loop/run_reporter.h"

#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "worker/trainer/comm/collective.h"
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

// A trainer whose clock goes on by a second whenever it is read.
class RankNewsTest : public testing::Test {
 protected:
  RankNewsTest() : device_(2), collective_(CreateLocal()) {
    parameters_ = *Parameters::Create(device_.backend->memory(), *MakeOutline(spec_.model),
                                      spec_.training.seed);
    auto made = Trainer::Create(spec_, {.device = device_.device(),
                                        .collective = *collective_,
                                        .parameters = *parameters_,
                                        .clock = [this] { return now_ += 1.0; }});
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
  void Add(const StepReport& report, bool with_precision, RankNews& news) const {
    AddStep(report, trainer_->outline(), trainer_->timeline(), with_precision, news);
  }

  const JobSpec spec_ = SmallSpec();
  TestDevice device_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Trainer> trainer_;
  double now_ = 0;
};

TEST_F(RankNewsTest, TotalsGrowAndTheRestIsOfTheNewestStep) {
  RankNews news;
  const StepReport first = Step();
  const StepReport second = Step();
  Add(first, true, news);
  Add(second, true, news);
  EXPECT_EQ(news.made.steps, 2);
  EXPECT_EQ(news.made.tokens, 2 * 2 * 32);
  EXPECT_EQ(news.made.skipped, 0);
  EXPECT_EQ(news.made.seconds, first.seconds.total + second.seconds.total);
  EXPECT_EQ(news.made.backward_seconds, first.seconds.backward + second.seconds.backward);
  EXPECT_GT(news.made.reduce_seconds, 0);
  EXPECT_EQ(news.step, 1);
  EXPECT_EQ(news.tokens, 2 * 2 * 32);
  EXPECT_EQ(news.loss, second.loss);
  EXPECT_EQ(news.revision, 1);
  EXPECT_EQ(news.revision_first_step, 0);
}

TEST_F(RankNewsTest, PrecisionIsOfTheStepThatWasSampledAndOfEveryOperand) {
  RankNews news;
  const StepReport sampled = Step();
  Add(sampled, true, news);
  ASSERT_EQ(news.precision.size(), sampled.figures.size());
  ASSERT_GT(news.precision.size(), 6u);
  std::set<std::string> seen;
  for (const PrecisionSample& sample : news.precision) {
    EXPECT_TRUE(seen.insert(sample.layer + " " + sample.operand).second);
    EXPECT_EQ(sample.step, 0);
    EXPECT_TRUE(std::isfinite(sample.relative_error));
  }
  EXPECT_EQ(DecodeNews(EncodeNews(news)).status(), absl::OkStatus());
  Add(Step(), true, news);
  EXPECT_TRUE(news.precision.empty());
}

TEST_F(RankNewsTest, ARankThatDoesNotSpeakForAllSendsNoPrecision) {
  RankNews news;
  Add(Step(), false, news);
  EXPECT_TRUE(news.precision.empty());
  EXPECT_EQ(news.made.steps, 1);
}

TEST_F(RankNewsTest, ASkippedUpdateIsCounted) {
  RankNews news;
  StepReport report = Step();
  report.updated = false;
  Add(report, true, news);
  EXPECT_EQ(news.made.skipped, 1);
  EXPECT_FALSE(news.updated);
}

TEST(RevisionNewsTest, ARevisionIsToldOnceAndTheNewestAreKept) {
  RankNews news;
  EXPECT_TRUE(NoteBegun({.revision = 1, .first_step = 0}, news));
  EXPECT_FALSE(NoteBegun({.revision = 1, .first_step = 0}, news));
  for (int64_t i = 2; i <= 20; ++i) {
    EXPECT_TRUE(NoteBegun({.revision = i, .first_step = 10 * i}, news));
  }
  ASSERT_EQ(news.begun.size(), kMaxRevisionsBegun);
  EXPECT_EQ(news.begun.front().revision, 5);
  EXPECT_EQ(news.begun.back(), (RevisionBegun{.revision = 20, .first_step = 200}));
  EXPECT_EQ(DecodeNews(EncodeNews(news)).status(), absl::OkStatus());
}

TEST(RevisionNewsTest, TheNewestRefusalsAreKept) {
  RankNews news;
  for (int64_t i = 2; i <= 20; ++i) NoteRefused({.revision = i, .reason = "no memory"}, news);
  ASSERT_EQ(news.refused.size(), kMaxRevisionsRefused);
  EXPECT_EQ(news.refused.back(), (RevisionRefused{.revision = 20, .reason = "no memory"}));
  EXPECT_EQ(DecodeNews(EncodeNews(news)).status(), absl::OkStatus());
}

TEST(CheckpointNewsTest, WhatIsStoredAndWhatFailedIsCounted) {
  RankNews news;
  AddCheckpoint({.step = 4, .bytes = 100, .stall_seconds = 0.5, .write_seconds = 2}, news);
  AddCheckpoint({.step = 8, .status = absl::ResourceExhaustedError("full"), .bytes = 100}, news);
  EXPECT_EQ(news.checkpoints,
            (CheckpointTotals{
                .stored = 1, .failed = 1, .bytes = 100, .stall_seconds = 0.5, .write_seconds = 2}));
}

}  // namespace
}  // namespace nibble

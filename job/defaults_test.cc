#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "job/schedule.h"

namespace nibble {
namespace {

JobSpec Parse(const std::string& training, const std::string& more = "",
              const std::string& model = "tiny-hybrid") {
  const std::string yaml = absl::StrCat("name: d\nmodel: ", model, "\ndata: {train: [a.txt]}\n",
                                        "training: {", training, "}\n", more);
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(yaml);
  EXPECT_TRUE(spec.ok()) << yaml << spec.status();
  return spec.ok() ? *spec : JobSpec();
}

TEST(DefaultsTest, ARunOfAnyLengthIsValidWithDefaults) {
  for (int64_t steps = 1; steps <= 300; ++steps) {
    for (const char* schedule : {"wsd", "cosine", "constant"}) {
      Parse(absl::StrCat("steps: ", steps),
            absl::StrCat("optimizer: {schedule: ", schedule, "}\n"));
    }
  }
}

TEST(DefaultsTest, AShortRunDerivesItsIntervalsAsTenthsOfItsLength) {
  const JobSpec spec = Parse("steps: 100");
  EXPECT_EQ(spec.optimizer.warmup_steps, 10);
  EXPECT_EQ(spec.training.validate_every, 10);
  EXPECT_EQ(spec.metrics.precision_every, 10);
  EXPECT_EQ(spec.metrics.log_every, 10);
  EXPECT_EQ(spec.checkpoints.every, 10);
  EXPECT_EQ(Parse("steps: 20").metrics.log_every, 2);
  EXPECT_EQ(Parse("steps: 3").checkpoints.every, 1);
}

TEST(DefaultsTest, ALongRunHasThePlainDefaults) {
  const JobSpec spec = Parse("steps: 10000");
  EXPECT_EQ(spec.optimizer, OptimizerSpec());
  EXPECT_EQ(spec.metrics, MetricsSpec());
  EXPECT_EQ(spec.checkpoints, CheckpointSpec());
  EXPECT_EQ(spec.training.validate_every, TrainingSpec().validate_every);
}

TEST(DefaultsTest, SetFieldsKeepTheirValues) {
  const JobSpec spec = Parse("steps: 100, validate_every: 100, batch: 6",
                             "optimizer: {warmup_steps: 80, final_lr: 1.0e-05}\n"
                             "checkpoints: {every: 1000}\nmetrics: {log_every: 50}\n");
  EXPECT_EQ(spec.optimizer.warmup_steps, 80);
  EXPECT_EQ(spec.checkpoints.every, 1000);
  EXPECT_EQ(spec.metrics.log_every, 50);
  EXPECT_EQ(spec.training.validate_every, 100);
  EXPECT_EQ(spec.training.batch, 6);
}

TEST(DefaultsTest, TheDefaultWarmUpAndDecayFitIntoTheRun) {
  EXPECT_EQ(Parse("steps: 100", "optimizer: {decay_fraction: 0.95}\n").optimizer.warmup_steps, 5);
  EXPECT_EQ(Parse("steps: 100", "optimizer: {decay_fraction: 1}\n").optimizer.warmup_steps, 0);
  for (int64_t warmup = 80; warmup <= 100; ++warmup) {
    const JobSpec spec =
        Parse("steps: 100", absl::StrCat("optimizer: {warmup_steps: ", warmup, "}\n"));
    EXPECT_EQ(DecayFirstStep(spec.optimizer, 100), warmup);
  }
}

TEST(DefaultsTest, TheDefaultFinalRateIsAtMostTheRate) {
  EXPECT_EQ(Parse("steps: 100", "optimizer: {lr: 1.0e-06}\n").optimizer.final_lr, 1e-6);
  EXPECT_EQ(Parse("steps: 100", "optimizer: {lr: 0.1}\n").optimizer.final_lr, 1e-5);
}

TEST(DefaultsTest, TheBatchIsAMultipleOfRanksAndMicroBatches) {
  EXPECT_EQ(Parse("steps: 100", "resources: {ranks: 3}\n").training.batch, 33);
  EXPECT_EQ(Parse("steps: 100, micro_batch: 5", "resources: {ranks: 2}\n").training.batch, 40);
  EXPECT_EQ(Parse("steps: 100", "resources: {ranks: 64}\n").training.batch, 64);
  EXPECT_EQ(Parse("steps: 100", "resources: {ranks: 8}\n").training.batch, 32);
}

TEST(DefaultsTest, DefaultsAddNoProblemsToAnInvalidValue) {
  const std::string least = "name: d\nmodel: tiny-hybrid\ndata: {train: [a.txt]}\n";
  for (const char* wrong :
       {"optimizer: {lr: -1}\ntraining: {steps: 100}\n",
        "resources: {ranks: 70000}\ntraining: {steps: 100}\n",
        "restarts: {backoff: -1}\ntraining: {steps: 100}\n",
        "optimizer: {warmup_steps: -1}\ntraining: {steps: 100}\n",
        "optimizer: {decay_fraction: 2}\ntraining: {steps: 100}\n", "training: {steps: 0}\n"}) {
    const absl::Status status = ParseJobSpec(absl::StrCat(least, wrong)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(status.message().find("problems"), absl::string_view::npos) << status;
  }
}

TEST(DefaultsTest, WithoutValidationDataThereIsNoValidation) {
  const std::string yaml =
      "name: d\nmodel: tiny-hybrid\ntraining: {steps: 100}\n"
      "data: {train: [a.txt], validation_fraction: 0}\n";
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(yaml);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training.validate_every, 0);
}

TEST(DefaultsTest, TheDefaultSequenceFitsLearnedPositions) {
  EXPECT_EQ(Parse("steps: 100", "", "tiny-gpt2").data.sequence, 512);
}

TEST(DefaultsTest, Fp32DefaultsToARecipeThatQuantisesNothing) {
  EXPECT_EQ(Parse("steps: 100, precision: fp32").recipe.preset, "bf16");
  EXPECT_EQ(Parse("steps: 100").recipe.preset, "nvfp4");
}

}  // namespace
}  // namespace nibble

// The trainer on the late device: memory that faults, queues that run late and out of step. A step
// that waits for too little gives other numbers than on the CPU, or faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/late/late_device.h"
#include "worker/trainer/comm/staged_collective.h"
#include "worker/trainer/comm/thread_group_testing.h"
#include "worker/trainer/loop/random_batch_testing.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

constexpr int64_t kSteps = 10;

JobSpec LateSpec(const std::string& preset, int world) {
  JobSpec spec;
  spec.name = "late";
  spec.model = HybridSpec();
  spec.model.mamba_state = 12;
  spec.model.mamba_heads = 16;
  spec.model.mamba_head_dim = 4;
  spec.model.init_std = 0.05;
  spec.recipe.preset = preset;
  spec.data.train = {{.path = "none"}};
  spec.data.sequence = 32;
  spec.training.steps = kSteps;
  spec.training.batch = 4 * world;
  spec.training.micro_batch = 2;
  spec.resources.ranks = world;
  spec.optimizer.lr = 1e-2;
  spec.optimizer.warmup_steps = 2;
  spec.metrics.precision_every = 3;
  spec.changes = {{.at = {.kind = EffectiveAt::Kind::kStep, .count = 4},
                   .set = {{"fprop", "bf16"}},
                   .layers = {},
                   .reason = "test"}};
  return spec;
}

// All that a run leaves behind.
struct Outcome {
  std::vector<double> losses, norms;
  std::vector<bool> updated;
  std::vector<std::string> bad;  // operands with NaN
  std::vector<float> amaxes;     // of sampled operands
  std::vector<float> weights;    // of the rank's parts
  double validation = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Train(const JobSpec& spec, const Device& device, Collective& collective) {
  Outcome outcome;
  Memory& memory = device.memory();
  // Every block is a bucket of its own.
  const JobSharding level = spec.resources.sharding;
  const std::unique_ptr<Parameters> parameters =
      *Parameters::Create(device, *MakeOutline(spec.model), spec.training.seed,
                          {.world = collective.world(),
                           .bucket_bytes = 1,
                           .shards_gradients = level != JobSharding::kOptimizer,
                           .shards_weights = level == JobSharding::kWeights,
                           .rank = collective.rank(),
                           .most_strip_rows = 32});
  absl::StatusOr<std::unique_ptr<Trainer>> made = Trainer::Create(
      spec, {.device = device, .collective = collective, .parameters = *parameters});
  EXPECT_TRUE(made.ok()) << made.status();
  Trainer& trainer = **made;
  // A weight that is NaN for one step, where it is stored.
  const int64_t changed = *trainer.outline().Find("blocks.1.mlp.up.weight");
  float* weight = parameters->weight(changed) + 3;
  if (parameters->weights_are_gathered()) {
    const int64_t bucket = parameters->bucket_of(changed);
    const ShardedAdamW::Part& part = trainer.optimizer().parts()[bucket];
    const int64_t at = parameters->offset(changed) + 3 - part.first;
    const bool mine = at >= 0 && at < part.elements;
    weight = mine ? trainer.optimizer().weights(bucket) + at : nullptr;
  }
  float good = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == 6 && weight != nullptr) {
      const float bad = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(memory.CopyOut(&good, weight, sizeof good).ok());
      EXPECT_TRUE(memory.CopyIn(weight, &bad, sizeof bad).ok());
      trainer.WeightsWereWritten();
    }
    if (step == 7 && weight != nullptr) {
      EXPECT_TRUE(memory.CopyIn(weight, &good, sizeof good).ok());
      trainer.WeightsWereWritten();
    }
    const Trainer::BatchSource batches = [&](int64_t at, int64_t micro) {
      return RandomBatch(spec, static_cast<uint64_t>(100 * at + 10 * collective.rank() + micro));
    };
    StepReport report;
    const absl::Status status = trainer.Step(batches, report);
    EXPECT_TRUE(status.ok()) << status;
    // NaN equals nothing.
    outcome.losses.push_back(report.sample.updated() ? report.sample.loss() : -1);
    outcome.norms.push_back(report.sample.updated() ? report.sample.gradient_norm() : -1);
    outcome.updated.push_back(report.sample.updated());
    for (const BadOperand& bad : report.bad_operands) outcome.bad.push_back(bad.linear);
    if (report.sample.updated()) {
      for (const OperandFigures& f : report.figures) outcome.amaxes.push_back(f.head.amax);
    }
    if (step == 2) {
      const absl::StatusOr<double> loss = trainer.Validate(batches, 2);
      EXPECT_TRUE(loss.ok()) << loss.status();
      outcome.validation = *loss;
    }
  }
  EXPECT_TRUE(device.backend.Synchronize().ok());
  // Of the passes of steps 2, 5, 7 and 8, of two micro-batches: the others are sampled, or the
  // first under their recipe. Weights in memory are prepared from recordings in steps 2 and 8, and
  // in step 7, which makes their working copies anew as step 4 did.
  const int64_t of_weights = trainer.weight_gathers() == nullptr ? 3 : 0;
  EXPECT_EQ(trainer.replayed_passes(),
            device.backend.compute().records() ? 4 * 2 * 2 + of_weights : 0);
  const ShardedAdamW& optimizer = trainer.optimizer();
  for (size_t b = 0; b < optimizer.parts().size(); ++b) {
    std::vector<float> part(optimizer.parts()[b].elements);
    EXPECT_TRUE(memory
                    .CopyOut(part.data(), optimizer.weights(static_cast<int64_t>(b)),
                             part.size() * sizeof(float))
                    .ok());
    outcome.weights.insert(outcome.weights.end(), part.begin(), part.end());
  }
  return outcome;
}

void ExpectSame(const Outcome& late, const Outcome& cpu) {
  EXPECT_EQ(late.losses, cpu.losses);
  EXPECT_EQ(late.norms, cpu.norms);
  EXPECT_EQ(late.updated, cpu.updated);
  EXPECT_EQ(late.bad, cpu.bad);
  EXPECT_EQ(late.amaxes, cpu.amaxes);
  EXPECT_EQ(late.weights, cpu.weights);
  EXPECT_EQ(late.validation, cpu.validation);
}

class LateTrainer : public testing::TestWithParam<const char*> {};

TEST_P(LateTrainer, GivesTheBitsOfTheCpuWhateverTheOrderOfItsQueues) {
  const JobSpec spec = LateSpec(GetParam(), 1);
  const std::unique_ptr<Collective> alone = CreateLocal();
  TestDevice cpu(2);
  const Outcome expected = Train(spec, cpu.device(), *alone);
  EXPECT_EQ(std::count(expected.updated.begin(), expected.updated.end(), false), 1);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    auto late = LateDevice::Create({.threads = 2, .seed = seed});
    ASSERT_TRUE(late.ok()) << late.status();
    LateDevice& device = **late;
    ExpectSame(Train(spec, {device.backend(), device.gemm(), device.ops()}, *CreateLocal()),
               expected);
  }
}

TEST_P(LateTrainer, TwoRanksOnTheirDevicesGiveTheBitsOfTwoOnTheCpuAtAnyLevelOfSharding) {
  constexpr int kWorld = 2;
  JobSpec spec = LateSpec(GetParam(), kWorld);
  std::vector<Outcome> optimizer;  // of the level
  for (const JobSharding level :
       {JobSharding::kOptimizer, JobSharding::kGradients, JobSharding::kWeights}) {
    SCOPED_TRACE(std::string(ChoiceName(level)));
    spec.resources.sharding = level;
    std::vector<Outcome> expected(kWorld), late(kWorld);
    RunRanks(kWorld, [&](int r, std::unique_ptr<Collective> collective) {
      TestDevice cpu(1);
      expected[r] = Train(spec, cpu.device(), *collective);
    });
    EXPECT_EQ(expected[0].losses, expected[1].losses);
    RunRanks(kWorld, [&](int r, std::unique_ptr<Collective> collective) {
      auto made = LateDevice::Create({.seed = static_cast<uint64_t>(11 * (r + 1))});
      ASSERT_TRUE(made.ok()) << made.status();
      LateDevice& device = **made;
      auto staged = StagedCollective::Create(device.backend(), std::move(collective), 4096);
      ASSERT_TRUE(staged.ok()) << staged.status();
      late[r] = Train(spec, {device.backend(), device.gemm(), device.ops()}, **staged);
    });
    for (int r = 0; r < kWorld; ++r) ExpectSame(late[r], expected[r]);
    if (level == JobSharding::kOptimizer) optimizer = expected;
    for (int r = 0; r < kWorld; ++r) ExpectSame(expected[r], optimizer[r]);
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, LateTrainer,
                         testing::Values("bf16", "nvfp4", "nvfp4-base", "mxfp4", "mxfp8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace nibble

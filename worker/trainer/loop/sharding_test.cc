// Levels of sharding (resources.sharding): the same losses and weights, bit for bit, in less
// memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/trainer/comm/thread_group_testing.h"
#include "worker/trainer/loop/random_batch_testing.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

constexpr int64_t kShardedSteps = 5;
constexpr JobSharding kShardings[] = {JobSharding::kOptimizer, JobSharding::kGradients,
                                      JobSharding::kWeights};

JobSpec ShardedSpec(const ModelSpec& model, int world, int64_t micro_batches,
                    const std::string& preset = "nvfp4") {
  JobSpec spec;
  spec.name = "test";
  spec.model = model;
  spec.model.init_std = 0.05;
  spec.model.mamba_state = 8;
  spec.model.mamba_heads = 16;
  spec.model.mamba_head_dim = 4;
  spec.recipe.preset = preset;
  spec.data.train = {{.path = "none"}};
  spec.data.sequence = 32;
  spec.training.steps = kShardedSteps;
  spec.training.batch = world * micro_batches;
  spec.training.micro_batch = 1;
  spec.resources.ranks = world;
  spec.optimizer.lr = 1e-2;
  spec.optimizer.warmup_steps = 2;
  spec.metrics.precision_every = 2;
  spec.changes = {{.at = {.kind = EffectiveAt::Kind::kStep, .count = 3},
                   .set = {{"fprop", "bf16"}},
                   .layers = {},
                   .reason = "test"}};
  return spec;
}

// What a run leaves behind, and what it took.
struct ShardedRun {
  std::vector<double> losses, norms;
  std::vector<float> amaxes;            // of sampled operands
  std::vector<float> weights, moments;  // of the rank's parts
  int64_t gathers = 0, bytes_sent = 0;
  int64_t buckets = 0;
  MemoryPlan memory;
};

ShardedRun TrainShardedRank(const JobSpec& spec, JobSharding level, Collective& collective) {
  ShardedRun outcome;
  TestDevice device(1);
  // Every block is a bucket of its own.
  const std::unique_ptr<Parameters> parameters =
      *Parameters::Create(device.device(), *MakeOutline(spec.model), spec.training.seed,
                          {.world = collective.world(),
                           .bucket_bytes = 1,
                           .shards_gradients = level != JobSharding::kOptimizer,
                           .shards_weights = level == JobSharding::kWeights,
                           .rank = collective.rank()});
  absl::StatusOr<std::unique_ptr<Trainer>> made = Trainer::Create(
      spec, {.device = device.device(), .collective = collective, .parameters = *parameters});
  EXPECT_TRUE(made.ok()) << made.status();
  Trainer& trainer = **made;
  const Trainer::BatchSource batches = [&](int64_t step, int64_t micro) {
    return RandomBatch(spec, static_cast<uint64_t>(1000 * step + 100 * collective.rank() + micro));
  };
  for (int64_t step = 0; step < kShardedSteps; ++step) {
    StepReport report;
    const absl::Status status = trainer.Step(batches, report);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(report.sample.updated());
    outcome.losses.push_back(report.sample.loss());
    outcome.norms.push_back(report.sample.gradient_norm());
    for (const OperandFigures& f : report.figures) outcome.amaxes.push_back(f.head.amax);
    if (step == 1) {
      const absl::StatusOr<double> loss = trainer.Validate(batches, 1);
      EXPECT_TRUE(loss.ok()) << loss.status();
      outcome.losses.push_back(*loss);
    }
  }
  const ShardedAdamW& optimizer = trainer.optimizer();
  outcome.buckets = static_cast<int64_t>(optimizer.parts().size());
  for (int64_t b = 0; b < outcome.buckets; ++b) {
    const int64_t elements = optimizer.parts()[b].elements;
    const float* weights = optimizer.weights(b);
    outcome.weights.insert(outcome.weights.end(), weights, weights + elements);
  }
  for (const float* moment : {optimizer.first_moment(), optimizer.second_moment()}) {
    outcome.moments.insert(outcome.moments.end(), moment, moment + optimizer.elements());
  }
  outcome.memory = trainer.memory();
  if (trainer.weight_gathers() != nullptr) {
    outcome.gathers = trainer.weight_gathers()->gathers();
    outcome.bytes_sent = trainer.weight_gathers()->bytes_sent();
  }
  return outcome;
}

std::vector<ShardedRun> TrainSharded(const JobSpec& spec, JobSharding level) {
  std::vector<ShardedRun> outcomes(static_cast<size_t>(spec.resources.ranks));
  RunRanks(static_cast<int>(spec.resources.ranks),
           [&](int r, std::unique_ptr<Collective> collective) {
             outcomes[r] = TrainShardedRank(spec, level, *collective);
           });
  return outcomes;
}

void ExpectSameRuns(const std::vector<ShardedRun>& a, const std::vector<ShardedRun>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t r = 0; r < a.size(); ++r) {
    SCOPED_TRACE(r);
    EXPECT_EQ(a[r].losses, b[r].losses);
    EXPECT_EQ(a[r].norms, b[r].norms);
    EXPECT_EQ(a[r].amaxes, b[r].amaxes);
    EXPECT_EQ(a[r].weights, b[r].weights);
    EXPECT_EQ(a[r].moments, b[r].moments);
  }
}

class Levels : public testing::TestWithParam<ModelSpec> {};

TEST_P(Levels, GiveTheSameBitsOnOneTwoAndFourRanks) {
  for (const int world : {1, 2, 4}) {
    const JobSpec spec = ShardedSpec(GetParam(), world, 1);
    const std::vector<ShardedRun> expected = TrainSharded(spec, JobSharding::kOptimizer);
    EXPECT_FALSE(expected[0].amaxes.empty());
    for (const JobSharding level : {JobSharding::kGradients, JobSharding::kWeights}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, ", std::string(ChoiceName(level))));
      ExpectSameRuns(TrainSharded(spec, level), expected);
    }
  }
}

TEST_P(Levels, GiveTheSameBitsInBf16) {
  const JobSpec spec = ShardedSpec(GetParam(), 2, 1, "bf16");
  const std::vector<ShardedRun> expected = TrainSharded(spec, JobSharding::kOptimizer);
  for (const JobSharding level : kShardings) ExpectSameRuns(TrainSharded(spec, level), expected);
}

TEST_P(Levels, WithRecomputedBlocksGiveTheSameBits) {
  JobSpec spec = ShardedSpec(GetParam(), 2, 1);
  const std::vector<ShardedRun> expected = TrainSharded(spec, JobSharding::kOptimizer);
  spec.training.recompute = JobRecompute::kBlocks;
  for (const JobSharding level : kShardings) ExpectSameRuns(TrainSharded(spec, level), expected);
}

// At level optimizer a rank adds its micro-batches first, above it ranks are added first.
TEST_P(Levels, WithSeveralMicroBatchesDifferInTheOrderOfTheSumOnly) {
  JobSpec spec = ShardedSpec(GetParam(), 2, 3, "bf16");
  spec.training.precision = JobPrecision::kFp32;
  spec.optimizer.lr = 2e-3;
  const std::vector<ShardedRun> optimizer = TrainSharded(spec, JobSharding::kOptimizer);
  const std::vector<ShardedRun> gradients = TrainSharded(spec, JobSharding::kGradients);
  ExpectSameRuns(TrainSharded(spec, JobSharding::kWeights), gradients);
  ASSERT_EQ(gradients[0].losses.size(), optimizer[0].losses.size());
  // Before the first update nothing but the loss was summed, in FP64.
  EXPECT_EQ(gradients[0].losses[0], optimizer[0].losses[0]);
  EXPECT_NEAR(gradients[0].norms[0] / optimizer[0].norms[0], 1.0, 1e-6);
  for (size_t i = 0; i < optimizer[0].losses.size(); ++i) {
    EXPECT_NEAR(gradients[0].losses[i] / optimizer[0].losses[i], 1.0, 1e-5) << i;
  }
}

TEST_P(Levels, TakeLessMemoryEachThanTheOneBefore) {
  const JobSpec spec = ShardedSpec(GetParam(), 4, 1);
  const MemoryPlan optimizer = TrainSharded(spec, JobSharding::kOptimizer)[0].memory;
  const MemoryPlan gradients = TrainSharded(spec, JobSharding::kGradients)[0].memory;
  const MemoryPlan weights = TrainSharded(spec, JobSharding::kWeights)[0].memory;
  EXPECT_LT(gradients.gradients, optimizer.gradients);
  EXPECT_EQ(gradients.weights, optimizer.weights);
  EXPECT_EQ(weights.gradients, gradients.gradients);
  EXPECT_LT(weights.weights, optimizer.weights);
  EXPECT_LT(weights.working_weights, optimizer.working_weights);
  EXPECT_LT(weights.total(), gradients.total());
  EXPECT_LT(gradients.total(), optimizer.total());
}

TEST_P(Levels, AreNamedWhereAModelDoesNotFitWithout) {
  const JobSpec spec = ShardedSpec(GetParam(), 2, 1);
  const auto create = [&](size_t memory_bytes, size_t& used) {
    std::vector<absl::Status> statuses(2);
    RunRanks(2, [&](int r, std::unique_ptr<Collective> collective) {
      TestDevice device(1, memory_bytes);
      const auto parameters =
          *Parameters::Create(device.device(), *MakeOutline(spec.model), spec.training.seed,
                              {.world = 2, .bucket_bytes = 1});
      const auto trainer = Trainer::Create(
          spec, {.device = device.device(), .collective = *collective, .parameters = *parameters});
      statuses[r] = trainer.status();
      if (r == 0) used = device.backend->memory().meter().used();
    });
    return statuses[0];
  };
  size_t used = 0, ignored = 0;
  const absl::Status roomy = create(size_t{1} << 40, used);
  EXPECT_TRUE(roomy.ok()) << roomy;
  const absl::Status tight = create(used - 4096, ignored);
  EXPECT_TRUE(absl::IsResourceExhausted(tight)) << tight;
  EXPECT_NE(tight.message().find("resources.sharding: gradients, which takes "),
            absl::string_view::npos)
      << tight;
}

TEST_P(Levels, GatherEachBucketOncePerPassExceptWhereThePassesTurn) {
  const JobSpec spec = ShardedSpec(GetParam(), 2, 1);
  const ShardedRun outcome = TrainSharded(spec, JobSharding::kWeights)[0];
  // The backward pass reads no embedding and finds the last bucket in its slot.
  const int64_t forward = outcome.buckets, backward = outcome.buckets - 2;
  EXPECT_EQ(outcome.gathers, (kShardedSteps + 1) * forward + kShardedSteps * backward)
      << "with a validation";
}

// Of a linear layer that no product reads quantised, of the head, and of an embedding to which no
// positions are added, passes read the BF16 rounding only.
TEST_P(Levels, SendNoMoreOfAWeightThanIsRead) {
  JobSpec spec = ShardedSpec(GetParam(), 2, 1, "bf16");
  const ShardedRun rounded = TrainSharded(spec, JobSharding::kWeights)[0];
  spec.training.precision = JobPrecision::kFp32;
  const ShardedRun exact = TrainSharded(spec, JobSharding::kWeights)[0];
  ASSERT_EQ(rounded.gathers, exact.gathers);
  EXPECT_LT(rounded.bytes_sent, exact.bytes_sent * 7 / 10);
  EXPECT_GT(rounded.bytes_sent, exact.bytes_sent / 2) << "norms and biases are in FP32";
}

TEST_P(Levels, PackedWeightsGiveTheBitsOfWeightsInFp32AndTakeLessOfTheWire) {
  for (const int world : {2, 4}) {
    JobSpec spec = ShardedSpec(GetParam(), world, 2);
    spec.changes.clear();
    // Steps that sample figures send quantised weights in FP32.
    spec.metrics.precision_every = 1;
    const std::vector<ShardedRun> exact = TrainSharded(spec, JobSharding::kWeights);
    spec.metrics.precision_every = 0;
    const std::vector<ShardedRun> packed = TrainSharded(spec, JobSharding::kWeights);
    ASSERT_EQ(packed.size(), exact.size());
    for (size_t r = 0; r < packed.size(); ++r) {
      EXPECT_EQ(packed[r].losses, exact[r].losses);
      EXPECT_EQ(packed[r].norms, exact[r].norms);
      EXPECT_EQ(packed[r].weights, exact[r].weights);
      EXPECT_EQ(packed[r].moments, exact[r].moments);
      EXPECT_EQ(packed[r].gathers, exact[r].gathers);
      EXPECT_LT(packed[r].bytes_sent, exact[r].bytes_sent * 6 / 10);
    }
    RecordProperty(absl::StrCat("bytes_in_fp32_", world), static_cast<int>(exact[0].bytes_sent));
    RecordProperty(absl::StrCat("bytes_packed_", world), static_cast<int>(packed[0].bytes_sent));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Levels, testing::Values(HybridSpec(), Gpt2Spec()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nibble

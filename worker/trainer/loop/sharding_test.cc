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
// The first bucket before the step with another recipe, whose messages are others.
constexpr int64_t kGatheredInVain = 1;
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
  std::vector<double> sent;             // bytes, by step
  std::vector<float> amaxes;            // of sampled operands
  std::vector<StatSums> figures;        // of sampled operands
  std::vector<float> weights, moments;  // of the rank's parts
  int64_t gathers = 0, first_step_gathers = 0;
  GatheredBytes bytes, first_step_bytes;
  int64_t buckets = 0;
  MemoryPlan memory;
};

struct ShardedOptions {
  int64_t strip_rows = 16;  // few divide small weights between ranks
  bool packs = true;
};

ShardedRun TrainShardedRank(const JobSpec& spec, JobSharding level, const ShardedOptions& options,
                            Collective& collective) {
  ShardedRun outcome;
  TestDevice device(1);
  // Every block is a bucket of its own.
  const std::unique_ptr<Parameters> parameters =
      *Parameters::Create(device.device(), *MakeOutline(spec.model), spec.training.seed,
                          {.world = collective.world(),
                           .bucket_bytes = 1,
                           .shards_gradients = level != JobSharding::kOptimizer,
                           .shards_weights = level == JobSharding::kWeights,
                           .rank = collective.rank(),
                           .reads_fp32 = spec.training.precision == JobPrecision::kFp32,
                           .most_strip_rows = options.strip_rows});
  absl::StatusOr<std::unique_ptr<Trainer>> made =
      Trainer::Create(spec, {.device = device.device(),
                             .collective = collective,
                             .parameters = *parameters,
                             .packs_weights = options.packs});
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
    outcome.sent.push_back(report.sample.bytes_sent());
    for (const OperandFigures& f : report.figures) {
      outcome.amaxes.push_back(f.head.amax);
      outcome.figures.push_back(f.head.stats);
    }
    if (step == 0 && trainer.weight_gathers() != nullptr) {
      outcome.first_step_bytes = trainer.weight_gathers()->bytes();
      outcome.first_step_gathers = trainer.weight_gathers()->gathers();
    }
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
    outcome.bytes = trainer.weight_gathers()->bytes();
  }
  return outcome;
}

std::vector<ShardedRun> TrainSharded(const JobSpec& spec, JobSharding level,
                                     const ShardedOptions& options = {}) {
  std::vector<ShardedRun> outcomes(static_cast<size_t>(spec.resources.ranks));
  RunRanks(static_cast<int>(spec.resources.ranks),
           [&](int r, std::unique_ptr<Collective> collective) {
             outcomes[r] = TrainShardedRank(spec, level, options, *collective);
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
    EXPECT_TRUE(a[r].figures == b[r].figures);
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

TEST_P(Levels, GiveTheSameBitsWithSeveralMicroBatches) {
  for (const JobPrecision precision : {JobPrecision::kBf16, JobPrecision::kFp32}) {
    JobSpec spec =
        ShardedSpec(GetParam(), 2, 3, precision == JobPrecision::kBf16 ? "nvfp4" : "bf16");
    spec.training.precision = precision;
    const std::vector<ShardedRun> optimizer = TrainSharded(spec, JobSharding::kOptimizer);
    for (const JobSharding level : {JobSharding::kGradients, JobSharding::kWeights}) {
      ExpectSameRuns(TrainSharded(spec, level), optimizer);
    }
  }
}

TEST_P(Levels, TakeLessMemoryEachThanTheOneBefore) {
  const JobSpec spec = ShardedSpec(GetParam(), 4, 1);
  const MemoryPlan optimizer = TrainSharded(spec, JobSharding::kOptimizer)[0].memory;
  const MemoryPlan gradients = TrainSharded(spec, JobSharding::kGradients)[0].memory;
  const MemoryPlan weights = TrainSharded(spec, JobSharding::kWeights)[0].memory;
  EXPECT_LT(gradients.gradients, optimizer.gradients);
  EXPECT_EQ(gradients.weights, optimizer.weights);
  EXPECT_EQ(gradients.working_weights, optimizer.working_weights);
  EXPECT_EQ(weights.gradients, gradients.gradients);
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
  EXPECT_EQ(outcome.gathers,
            (kShardedSteps + 1) * forward + kShardedSteps * backward + kGatheredInVain)
      << "with a validation";
  EXPECT_EQ(outcome.first_step_gathers, forward + backward + 1) << "and the next step's first";
}

TEST_P(Levels, GatherEachBucketOnceAStepUnlessWeightsTakeTurns) {
  const JobSpec spec = ShardedSpec(GetParam(), 2, 2);
  for (const JobSharding level : {JobSharding::kOptimizer, JobSharding::kGradients}) {
    const ShardedRun outcome = TrainSharded(spec, level)[0];
    EXPECT_EQ(outcome.gathers, (kShardedSteps + 1) * outcome.buckets + kGatheredInVain)
        << "with a validation";
    EXPECT_EQ(outcome.first_step_gathers, outcome.buckets + 1) << "and the next step's first";
    // Weights to the other rank, and of two micro-batches its part of the gradients: all else is
    // small.
    const double parts = 4.0 * static_cast<double>(outcome.weights.size());
    const double expected = static_cast<double>(outcome.first_step_bytes.sent) + 2 * parts;
    EXPECT_GE(outcome.sent[0], expected);
    EXPECT_LT(outcome.sent[0], expected + 4096);
    EXPECT_EQ(TrainSharded(ShardedSpec(GetParam(), 1, 2), level)[0].sent[0], 0);
  }
}

// Of a linear layer that no product reads quantised, of the head, and of the embedding with its
// positions, passes read the BF16 rounding only.
TEST_P(Levels, SendNoMoreOfAWeightThanIsRead) {
  for (const JobSharding level : kShardings) {
    JobSpec spec = ShardedSpec(GetParam(), 2, 1, "bf16");
    const Outline outline = *MakeOutline(spec.model);
    const std::vector<ShardedRun> all = TrainSharded(spec, level);
    const ShardedRun& rounded = all[0];
    spec.training.precision = JobPrecision::kFp32;
    const ShardedRun exact = TrainSharded(spec, level)[0];
    ASSERT_EQ(rounded.gathers, exact.gathers);
    EXPECT_EQ(rounded.bytes.packed, 0);
    EXPECT_EQ(exact.bytes.packed + exact.bytes.bf16, 0);
    EXPECT_LT(rounded.bytes.sent, exact.bytes.sent * 7 / 10);
    EXPECT_GT(rounded.bytes.fp32, 0) << "norms and biases are in FP32";
    if (level == JobSharding::kWeights) continue;
    int64_t vectors = 0;  // elements
    for (const ParamInfo& param : outline.params) {
      const bool rounds = param.linear >= 0 || param.name == "head.weight" ||
                          param.name == "embedding.weight" || param.name == "positions.weight";
      const int64_t aligned = (param.elements() + kParameterAlign - 1) / kParameterAlign;
      if (!rounds) vectors += aligned * kParameterAlign;
    }
    int64_t fp32 = 0;
    for (const ShardedRun& rank : all) fp32 += rank.bytes.fp32;
    EXPECT_EQ(fp32, 4 * vectors * (kShardedSteps + 1)) << "with a validation";
  }
}

struct PackedCase {
  const char* preset;
  int64_t strip_rows;
  double bytes_per_weight;  // of a quantised one; without those in BF16 for the other product
};

// Every format's blocks divide it.
JobSpec PackedSpec(const PackedCase& of, int world) {
  ModelSpec model = HybridSpec();
  model.d_model = 128;
  model.d_ff = 256;
  model.head_dim = 32;
  JobSpec spec = ShardedSpec(model, world, 2, of.preset);
  spec.model.mamba_state = 24;
  spec.model.mamba_heads = 32;
  spec.model.mamba_head_dim = 8;
  spec.data.sequence = 128;
  spec.changes.clear();
  return spec;
}

class Packed : public testing::TestWithParam<PackedCase> {};

TEST_P(Packed, WeightsGiveTheBitsOfWeightsInFp32AndTakeLessOfTheWire) {
  const PackedCase& of = GetParam();
  for (const int world : {2, 4}) {
    const JobSpec spec = PackedSpec(of, world);
    const std::vector<ShardedRun> exact =
        TrainSharded(spec, JobSharding::kOptimizer, {.strip_rows = of.strip_rows, .packs = false});
    for (const JobSharding level : kShardings) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, ", std::string(ChoiceName(level))));
      const std::vector<ShardedRun> packed =
          TrainSharded(spec, level, {.strip_rows = of.strip_rows});
      ExpectSameRuns(packed, exact);
      if (level == JobSharding::kWeights) continue;
      GatheredBytes sum, exact_sum;
      for (size_t r = 0; r < packed.size(); ++r) {
        EXPECT_EQ(packed[r].gathers, exact[r].gathers);
        EXPECT_LT(packed[r].bytes.sent, exact[r].bytes.sent);
        EXPECT_LT(packed[r].sent[0], exact[r].sent[0]);
        sum.packed += packed[r].bytes.packed;
        sum.fp32 += packed[r].bytes.fp32;
        exact_sum.packed += exact[r].bytes.packed;
        exact_sum.fp32 += exact[r].bytes.fp32;
      }
      EXPECT_EQ(exact_sum.packed, 0);
      // Norms and the like are in FP32 in both.
      const double weights = static_cast<double>(exact_sum.fp32 - sum.fp32) / 4;
      EXPECT_NEAR(static_cast<double>(sum.packed) / weights, of.bytes_per_weight, 0.005);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Packed,
                         testing::Values(PackedCase{"nvfp4", 16, 0.5 + 1.0 / 256},
                                         PackedCase{"nvfp4-base", 16, 2 * (0.5 + 1.0 / 16)},
                                         PackedCase{"mxfp4", 32, 0.5 + 1.0 / 1024},
                                         PackedCase{"mxfp8", 32, 2 * (1 + 1.0 / 32)},
                                         PackedCase{"fp8-block", 128, 1 + 4.0 / 16384}),
                         [](const auto& info) {
                           std::string name = info.param.preset;
                           std::erase(name, '-');
                           return name;
                         });

// Attention and Mamba have one scale for a weight, the MLP blocks of 1x128 or a scale per row; the
// other product reads all of them in BF16.
TEST(PackedForOneProduct, WeightsTravelInBf16ForTheOtherAndGiveTheSameBits) {
  for (const char* preset : {"fp4-zhou", "fp4-zhou-token"}) {
    SCOPED_TRACE(preset);
    const JobSpec spec = PackedSpec({preset, 16, 0}, 2);
    const std::vector<ShardedRun> exact =
        TrainSharded(spec, JobSharding::kOptimizer, {.packs = false});
    for (const JobSharding level : kShardings) {
      const std::vector<ShardedRun> packed = TrainSharded(spec, level);
      ExpectSameRuns(packed, exact);
      EXPECT_GT(packed[0].bytes.packed, 0);
      EXPECT_GT(packed[0].bytes.bf16, 2 * packed[0].bytes.packed);
      EXPECT_LT(packed[0].bytes.fp32, exact[0].bytes.fp32);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Levels, testing::Values(HybridSpec(), Gpt2Spec()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nibble

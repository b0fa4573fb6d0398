#include "job/job_check.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

JobSpec Valid() {
  JobSpec spec;
  spec.name = "valid";
  spec.model = *ModelPreset("tiny-hybrid");
  spec.data.train = {{.path = "corpus.txt"}};
  spec.training.steps = 1000;
  return spec;
}

std::string CheckError(const JobSpec& spec) {
  const absl::Status status = Validate(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobCheckTest, AValidSpecIsValid) { EXPECT_TRUE(Validate(Valid()).ok()); }

TEST(JobCheckTest, RangesApplyToSpecsMadeInCode) {
  JobSpec spec = Valid();
  spec.optimizer.lr = -1;
  spec.training.batch = 0;
  EXPECT_EQ(CheckError(spec),
            "2 problems:\n"
            "  training.batch: 0 is not in [1, 65536]\n"
            "  optimizer.lr: -1 is not in [1.0e-12, 10]");
  EXPECT_THAT(CheckError(JobSpec()), HasSubstr("training.steps: 0 is not in"));
}

TEST(JobCheckTest, TheBatchIsAMultipleOfTheRanks) {
  JobSpec spec = Valid();
  spec.resources.ranks = 3;
  EXPECT_EQ(CheckError(spec),
            "training.batch: 32 is not a multiple of resources.ranks, which is 3");
}

TEST(JobCheckTest, ARunStopsWithinItsSteps) {
  JobSpec spec = Valid();
  EXPECT_EQ(EndStep(spec), 1000);
  spec.training.stop_at = 400;
  EXPECT_TRUE(Validate(spec).ok());
  EXPECT_EQ(EndStep(spec), 400);
  spec.training.stop_at = 1001;
  EXPECT_EQ(CheckError(spec), "training.stop_at: 1001 is over 1000, training.steps");
}

TEST(JobCheckTest, EachRepeatHasASeedOfItsOwnAndThatOfTheFirstIsTheRuns) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    EXPECT_EQ(RepeatSeed({.seed = seed}), seed);
    for (int64_t repeat = 0; repeat < 30; ++repeat) {
      EXPECT_TRUE(seeds.insert(RepeatSeed({.seed = seed, .repeat = repeat})).second)
          << seed << " " << repeat;
    }
  }
}

TEST(JobCheckTest, TheMicroBatchDividesARanksShare) {
  JobSpec spec = Valid();
  spec.resources.ranks = 4;
  spec.training.micro_batch = 3;
  EXPECT_EQ(CheckError(spec),
            "training.micro_batch: 3 does not divide 8, a rank's share of training.batch");
  spec.training.micro_batch = 8;
  EXPECT_TRUE(Validate(spec).ok());
  spec.training.micro_batch = 16;
  EXPECT_THAT(CheckError(spec), HasSubstr("16 does not divide 8"));
}

TEST(JobCheckTest, ASequenceFitsTheLearnedPositions) {
  JobSpec spec = Valid();
  spec.model = *ModelPreset("tiny-gpt2");
  spec.data.sequence = 1024;
  EXPECT_EQ(CheckError(spec), "data.sequence: 1024 is over the model's max_positions, 512");
  spec.data.sequence = 512;
  EXPECT_TRUE(Validate(spec).ok());
}

TEST(JobCheckTest, AGuardThatActsOnOperandsNeedsSamplesAndLayersThatExist) {
  JobSpec spec = Valid();
  spec.metrics.precision_every = 0;
  EXPECT_TRUE(Validate(spec).ok());
  spec.guards.underflow = OperandPolicy::kPromote;
  EXPECT_EQ(CheckError(spec), "guards.underflow: promote needs metrics.precision_every above 0");
  spec.metrics.precision_every = 10;
  EXPECT_TRUE(Validate(spec).ok());
  spec.guards.promote_layers = "block 9999";
  EXPECT_THAT(CheckError(spec), HasSubstr("guards.promote_layers: "));
}

TEST(JobCheckTest, ErrorsOfTheModelNameTheField) {
  JobSpec spec = Valid();
  spec.model.kv_heads = 3;
  EXPECT_EQ(CheckError(spec), "model.kv_heads: 3 does not divide heads, which is 4");
}

TEST(JobCheckTest, TheVocabularyIsAtLeastTheTokenizers) {
  JobSpec spec = Valid();
  spec.model.vocab = 256;
  EXPECT_TRUE(Validate(spec).ok());  // checked when the data is read
  spec.data.tokenizer = JobTokenizer::kBytes;
  EXPECT_EQ(CheckError(spec), "model.vocab: 256 is under 257, the tokens of data.tokenizer bytes");
}

TEST(JobCheckTest, TheTokenizerFileMatchesTheTokenizer) {
  JobSpec spec = Valid();
  spec.data.tokenizer = JobTokenizer::kHuggingFace;
  EXPECT_EQ(CheckError(spec), "data.tokenizer_model: missing; data.tokenizer is huggingface");
  spec.data.tokenizer_model = "tokenizer.json";
  EXPECT_TRUE(Validate(spec).ok());
  spec.data.tokenizer = JobTokenizer::kData;
  EXPECT_TRUE(Validate(spec).ok());
  spec.data.tokenizer = JobTokenizer::kBytes;
  EXPECT_EQ(CheckError(spec),
            "data.tokenizer_model: 'tokenizer.json' is not used: data.tokenizer is bytes");
}

TEST(JobCheckTest, TheTokenizerLabelFitsAShardAndMatchesTheTokenizer) {
  JobSpec spec = Valid();
  spec.data.tokenizer_label = std::string(33, 'x');
  EXPECT_EQ(CheckError(spec), "data.tokenizer_label: '" + std::string(33, 'x') +
                                  "' is not at most 32 printable ASCII characters");
  spec.data.tokenizer_label = "gpt2";
  EXPECT_TRUE(Validate(spec).ok());
  spec.data.tokenizer = JobTokenizer::kBytes;
  EXPECT_EQ(CheckError(spec),
            "data.tokenizer_label: 'gpt2' does not match data.tokenizer, which is bytes");
}

TEST(JobCheckTest, WeightsAddUpToAtMostTheLimitOfABlend) {
  JobSpec spec = Valid();
  spec.data.train = {{"a", 60'000}, {"b", 60'000}};
  EXPECT_EQ(CheckError(spec), "data.train: the weights add up to 120000, over 100000");
}

TEST(JobCheckTest, ValidationSetsHaveUniqueNames) {
  JobSpec spec = Valid();
  spec.data.validation = {{"a", "x/a"}, {"a", "y/a"}};
  EXPECT_EQ(CheckError(spec),
            "data.validation[1].name: 'a' is already the name of an earlier entry");
}

TEST(JobCheckTest, ValidationNeedsSomethingToValidateOn) {
  JobSpec spec = Valid();
  spec.data.validation_fraction = 0;
  EXPECT_EQ(CheckError(spec),
            "training.validate_every: 100 needs validation data, but data.validation is empty "
            "and data.validation_fraction is 0");
  spec.training.validate_every = 0;
  EXPECT_TRUE(Validate(spec).ok());
}

TEST(JobCheckTest, AnEarlyStopNeedsValidations) {
  JobSpec spec = Valid();
  spec.early_stop.patience = 3;
  EXPECT_TRUE(Validate(spec).ok());
  spec.training.validate_every = 0;
  EXPECT_EQ(
      CheckError(spec),
      "early_stop.patience: 3 needs validations, but training.validate_every is 0 or there is "
      "nothing to validate on");
}

TEST(JobCheckTest, TheWarmUpEndsBeforeTheDecay) {
  JobSpec spec = Valid();
  spec.optimizer.warmup_steps = 801;
  EXPECT_EQ(CheckError(spec),
            "optimizer.warmup_steps: 801 is over 800, the steps before the decay");
  spec.optimizer.warmup_steps = 800;
  EXPECT_TRUE(Validate(spec).ok());
  spec.optimizer.schedule = LrSchedule::kCosine;
  spec.optimizer.warmup_steps = 1001;
  EXPECT_EQ(CheckError(spec), "optimizer.warmup_steps: 1001 is over 1000, the steps of the run");
}

TEST(JobCheckTest, TheFinalRateIsNotOverTheRate) {
  JobSpec spec = Valid();
  spec.optimizer.final_lr = 0.002;
  EXPECT_EQ(CheckError(spec), "optimizer.final_lr: 0.002 is over 0.001, optimizer.lr");
}

TEST(JobCheckTest, TheRecipeResolvesWithTheTokensOfAMicroBatch) {
  JobSpec spec = Valid();
  spec.data.sequence = 100;
  spec.training.micro_batch = 1;
  EXPECT_THAT(CheckError(spec), HasSubstr("recipe: layer 'blocks.0.mamba.in_proj'"));
  EXPECT_THAT(CheckError(spec), HasSubstr("tokens = 100 is not a multiple of the block 16"));
  spec.training.micro_batch = 4;
  EXPECT_TRUE(Validate(spec).ok());
}

TEST(JobCheckTest, EachRecipeErrorNamesItsField) {
  JobSpec spec = Valid();
  spec.recipe.preset = "nvpf4";
  spec.recipe.set = {{"fprop", "bf17"}, {"fprp", "bf16"}, {"fprop", "bf16"}};
  spec.recipe.layers = {{"last 9 blocks", {{"all", "bf16"}}}, {"what?", {{"all", "fp7"}}}};
  const std::string error = CheckError(spec);
  for (const char* part :
       {"recipe.preset: 'nvpf4' is not known; nearest: 'nvfp4'",
        "recipe.set.fprop: 'bf17' is not known; nearest: 'bf16'",
        "recipe.set.fprp: recipe field 'fprp' is not known; nearest: 'fprop'",
        "recipe.set.fprop: set twice", "recipe.layers[0].match: selector 'last 9 blocks'",
        "recipe.layers[1].match: selector 'what?'", "recipe.layers[1].set.all: 'fp7'"}) {
    EXPECT_THAT(error, HasSubstr(part));
  }
}

TEST(JobCheckTest, Fp32AllowsNoQuantisedLayer) {
  JobSpec spec = Valid();
  spec.training.precision = JobPrecision::kFp32;
  EXPECT_EQ(CheckError(spec),
            "training.precision: fp32 allows no quantised layer, but recipe quantises "
            "blocks.0.mamba.in_proj; use recipe: bf16");
  spec.recipe = {.preset = "bf16"};
  EXPECT_TRUE(Validate(spec).ok());
  spec.changes = {{.at = {.kind = EffectiveAt::Kind::kLrDecay}, .set = {{"all", "nvfp4"}}}};
  EXPECT_THAT(CheckError(spec), HasSubstr("but changes[0] quantises blocks.0.mamba.in_proj"));
}

TEST(JobCheckTest, NativeProductsNeedACard) {
  JobSpec spec = Valid();
  spec.training.products = JobProducts::kNative;
  EXPECT_EQ(CheckError(spec),
            "training.products: native needs resources.device: cuda; a CPU emulates every format");
  spec.resources.device = JobDevice::kCuda;
  EXPECT_TRUE(Validate(spec).ok());
}

TEST(JobCheckTest, NcclNeedsCards) {
  JobSpec spec = Valid();
  spec.resources.collectives = JobCollectives::kNccl;
  EXPECT_EQ(CheckError(spec),
            "resources.collectives: nccl needs resources.device: cuda; ranks on CPUs exchange over "
            "TCP");
  spec.resources.device = JobDevice::kCuda;
  EXPECT_TRUE(Validate(spec).ok());
  spec.resources.reduction = JobReduction::kNccl;
  EXPECT_TRUE(Validate(spec).ok());
  spec.resources.collectives = JobCollectives::kStaged;
  EXPECT_EQ(CheckError(spec),
            "resources.reduction: nccl cannot be combined with resources.collectives: staged");
  spec.resources = {.reduction = JobReduction::kNccl};
  EXPECT_EQ(CheckError(spec), "resources.reduction: nccl needs resources.device: cuda");
}

TEST(JobCheckTest, CopyEnginesNeedCardsThatSumInRankOrder) {
  JobSpec spec = Valid();
  spec.resources.exchange = JobExchange::kCopies;
  EXPECT_EQ(CheckError(spec), "resources.exchange: copies needs resources.device: cuda");
  spec.resources.device = JobDevice::kCuda;
  EXPECT_TRUE(Validate(spec).ok());
  spec.resources.collectives = JobCollectives::kStaged;
  EXPECT_EQ(CheckError(spec),
            "resources.exchange: copies cannot be combined with resources.collectives: staged");
  spec.resources.collectives = JobCollectives::kAuto;
  spec.resources.reduction = JobReduction::kNccl;
  EXPECT_EQ(CheckError(spec),
            "resources.exchange: copies cannot be combined with resources.reduction: nccl");
  spec.resources.exchange = JobExchange::kAuto;
  EXPECT_TRUE(Validate(spec).ok());
}

TEST(JobCheckTest, ChangesHaveATimeInTheRunAndChangeSomething) {
  JobSpec spec = Valid();
  spec.changes = {
      {.at = {.kind = EffectiveAt::Kind::kStep, .count = 1001}, .set = {{"all", "bf16"}}},
      {.at = {.kind = EffectiveAt::Kind::kStep, .count = 7}}};
  EXPECT_EQ(CheckError(spec), "changes[1]: changes nothing: neither set nor layers has a field");
  spec.changes.pop_back();
  EXPECT_EQ(CheckError(spec),
            "changes[0].at: step:1001 is step 1001, outside [0, 1000], the steps of the run");
  spec.changes[0].at = {.kind = EffectiveAt::Kind::kNow};
  EXPECT_EQ(CheckError(spec),
            "changes[0].at: 'now' is only for running jobs; allowed: step:N, tokens:N, fraction:F, "
            "P%, lr-decay");
  spec.changes[0].at = {.kind = EffectiveAt::Kind::kLrDecay};
  EXPECT_TRUE(Validate(spec).ok());
  spec.optimizer.schedule = LrSchedule::kConstant;
  EXPECT_THAT(CheckError(spec), HasSubstr("changes[0].at: lr-decay, but the learning rate never"));
}

TEST(JobCheckTest, AChangeIsCheckedOnTopOfTheRecipeBeforeIt) {
  JobSpec spec = Valid();
  spec.recipe = {.preset = "bf16"};
  spec.data.sequence = 16;
  spec.training.batch = 1;
  // 16 tokens are a whole number of nvfp4 blocks, and half a block of mxfp4.
  spec.changes = {
      {.at = {.kind = EffectiveAt::Kind::kStep, .count = 20}, .set = {{"wgrad", "mxfp4"}}},
      {.at = {.kind = EffectiveAt::Kind::kStep, .count = 10}, .set = {{"all", "nvfp4"}}}};
  EXPECT_THAT(CheckError(spec),
              HasSubstr("changes[0]: layer 'blocks.0.mamba.in_proj', wgrad.gradient: "
                        "tokens = 16"));
}

TEST(JobCheckTest, OneMistakeIsReportedOnce) {
  JobSpec spec = Valid();
  spec.training.batch = -3;  // would also fail the checks of ranks and tokens
  spec.resources.ranks = 2;
  EXPECT_EQ(CheckError(spec), "training.batch: -3 is not in [1, 65536]");
}

TEST(TimelineTest, RevisionsAreInTheOrderOfTheirSteps) {
  JobSpec spec = Valid();
  spec.changes = {
      {.at = {.kind = EffectiveAt::Kind::kFraction, .fraction = 0.9},
       .set = {{"all", "bf16"}},
       .reason = "last"},
      {.at = {.kind = EffectiveAt::Kind::kLrDecay}, .set = {{"fprop", "bf16"}}, .reason = "middle"},
      {.at = {.kind = EffectiveAt::Kind::kTokens, .count = 32 * 1024 * 5 + 1},
       .layers = {{"mlp", {{"all", "mxfp8"}}}},
       .reason = "first"}};
  ASSERT_TRUE(Validate(spec).ok()) << Validate(spec);
  const Timeline timeline = MakeTimeline(spec);
  ASSERT_EQ(timeline.revisions().size(), 4u);
  EXPECT_EQ(timeline.revisions()[0].recipe, spec.recipe);
  const int64_t steps[] = {0, 6, 800, 900};
  const char* const reasons[] = {"", "first", "middle", "last"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(timeline.revisions()[i].number, i + 1);
    EXPECT_EQ(timeline.revisions()[i].first_step, steps[i]);
    EXPECT_EQ(timeline.revisions()[i].reason, reasons[i]);
  }
  EXPECT_EQ(timeline.At(5).number, 1);
  EXPECT_EQ(timeline.At(6).number, 2);
  EXPECT_EQ(timeline.revisions()[3].author, "spec");
}

TEST(TimelineTest, ChangesOfOneStepKeepTheirOrder) {
  JobSpec spec = Valid();
  const EffectiveAt at = {.kind = EffectiveAt::Kind::kStep, .count = 10};
  spec.changes = {{.at = at, .set = {{"fprop", "mxfp8"}}}, {.at = at, .set = {{"fprop", "bf16"}}}};
  const Timeline timeline = MakeTimeline(spec);
  EXPECT_EQ(timeline.At(10).recipe.set.back(), (FieldSetting{"fprop", "bf16"}));
}

TEST(TimelineDeathTest, AnInvalidSpecAborts) {
  JobSpec spec = Valid();
  spec.changes = {
      {.at = {.kind = EffectiveAt::Kind::kStep, .count = 2000}, .set = {{"all", "bf16"}}}};
  EXPECT_DEATH(MakeTimeline(spec), "MakeTimeline: the spec is not valid: changes\\[0\\].at");
}

}  // namespace
}  // namespace nibble

#include "job/job_spec.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_fields.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kShortestSpec[] =
    "name: least\nmodel: tiny-hybrid\ndata: {train: [corpus.txt]}\ntraining: {steps: 1000}\n";

JobSpec ParsedSpec(std::string_view yaml) {
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(yaml);
  EXPECT_TRUE(spec.ok()) << yaml << "\n" << spec.status();
  return spec.ok() ? *spec : JobSpec();
}

std::string SpecError(std::string_view yaml) {
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(yaml);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << yaml;
  return std::string(spec.status().message());
}

// The minimal spec followed by `more`, which begins in line 5.
std::string With(std::string_view more) { return absl::StrCat(kShortestSpec, std::string(more)); }

TEST(JobSpecTest, AMinimalSpecHasDefaultsForTheOtherFields) {
  const JobSpec spec = ParsedSpec(kShortestSpec);
  EXPECT_EQ(spec.name, "least");
  EXPECT_EQ(spec.model, *ModelPreset("tiny-hybrid"));
  EXPECT_EQ(spec.recipe, Recipe{.preset = "nvfp4"});
  EXPECT_THAT(spec.changes, IsEmpty());
  EXPECT_EQ(spec.data.train[0], (TrainingSource{"corpus.txt", 1}));
  EXPECT_EQ(spec.training.steps, 1000);
  EXPECT_EQ(spec.optimizer, OptimizerSpec());
  EXPECT_EQ(OutputDirectory(spec), "runs/least");
  EXPECT_EQ(TokensPerStep(spec), 32 * 1024);
  EXPECT_EQ(MicroBatch(spec), 32);
}

TEST(JobSpecTest, InitialWeightsComeFromAJobOrAStore) {
  EXPECT_FALSE(ParsedSpec(kShortestSpec).init_from.any());
  const JobSpec of_job = ParsedSpec(With("init_from: {job: base-run, step: 2000}\n"));
  EXPECT_EQ(of_job.init_from, (InitSpec{.job = "base-run", .step = 2000}));
  const JobSpec of_store = ParsedSpec(With("init_from: {path: runs/base}\n"));
  EXPECT_EQ(of_store.init_from, (InitSpec{.path = "runs/base"}));
  EXPECT_EQ(ParsedSpec(ToYaml(of_store)), of_store);
  EXPECT_EQ(SpecError(With("init_from: {job: base-run, path: runs/base}\n")),
            "line 5: init_from.path: cannot be combined with init_from.job");
  EXPECT_THAT(SpecError(With("init_from: {step: 20}\n")),
              HasSubstr("init_from.step: 20 needs init_from.job or init_from.path"));
  EXPECT_THAT(SpecError(With("init_from: {job: base-run, step: -2}\n")),
              HasSubstr("init_from.step: -2 is not in [-1, 100000000]"));
  EXPECT_THAT(SpecError(With("init_from: {jobs: base-run}\n")), HasSubstr("init_from.jobs"));
}

TEST(JobSpecTest, EverySectionIsRead) {
  const JobSpec spec = ParsedSpec(R"(
name: all-of-it
model: tiny-gpt2
recipe: bf16
changes: [{at: 82%, set: {fprop: mxfp8}, reason: why not}]
data:
  train: [a.txt, {path: b, weight: 3}]
  validation: [{name: v, path: c}, some/dir.d/wiki-en.txt]
  sequence: 128
  tokenizer: bytes
  split: file
  validation_fraction: 0.5
  reset_at_documents: false
training: {steps: 50, batch: 8, micro_batch: 2, seed: 18446744073709551615, precision: bf16,
           recompute: blocks, validate_every: 0, validation_batches: 3}
optimizer: {lr: 0.5, final_lr: 0, beta1: 0, beta2: .5, epsilon: 1e-3, weight_decay: 0,
            clip_norm: 0, schedule: constant, warmup_steps: 0, decay_fraction: 1,
            decay_shape: cosine}
guards: {non_finite: stop, spike: off, spike_z: 3.5, spike_window: 9}
metrics: {precision_every: 0, log_every: 1}
resources: {ranks: 2, threads: 3, device: cpu}
output: {directory: /tmp/x}
)");
  EXPECT_EQ(spec.model.name, "tiny-gpt2");
  EXPECT_EQ(spec.recipe.preset, "bf16");
  ASSERT_EQ(spec.changes.size(), 1u);
  EXPECT_EQ(spec.changes[0].at.fraction, 0.82);
  EXPECT_EQ(spec.changes[0].reason, "why not");
  EXPECT_THAT(spec.changes[0].set, ElementsAre(FieldSetting{"fprop", "mxfp8"}));
  EXPECT_THAT(spec.data.train, ElementsAre(TrainingSource{"a.txt", 1}, TrainingSource{"b", 3}));
  EXPECT_THAT(spec.data.validation,
              ElementsAre(ValidationSource{"v", "c"},
                          ValidationSource{"wiki-en", "some/dir.d/wiki-en.txt"}));
  EXPECT_EQ(spec.data.split, JobSplit::kFile);
  EXPECT_FALSE(spec.data.reset_at_documents);
  EXPECT_EQ(spec.training.seed, 18446744073709551615u);
  EXPECT_EQ(spec.training.recompute, JobRecompute::kBlocks);
  EXPECT_EQ(MicroBatch(spec), 2);
  EXPECT_EQ(SequencesPerRank(spec), 4);
  EXPECT_EQ(spec.optimizer.schedule, LrSchedule::kConstant);
  EXPECT_EQ(spec.optimizer.beta2, 0.5);
  EXPECT_EQ(spec.guards.spike, SpikePolicy::kOff);
  EXPECT_EQ(spec.guards.non_finite, NonFinitePolicy::kStop);
  EXPECT_EQ(spec.metrics.log_every, 1);
  EXPECT_EQ(spec.resources.threads, 3);
  EXPECT_EQ(OutputDirectory(spec), "/tmp/x");
}

TEST(JobSpecTest, AModelIsAPresetAPresetWithChangesOrAllFields) {
  const std::string rest = "data: {train: [a]}\ntraining: {steps: 1000}\nname: m\n";
  const JobSpec changed =
      ParsedSpec(rest + "model: {chunk: 32, preset: tiny-hybrid, tied_head: true}");
  ModelSpec expected = *ModelPreset("tiny-hybrid");
  expected.chunk = 32;
  expected.tied_head = true;
  EXPECT_EQ(changed.model, expected);

  const JobSpec whole =
      ParsedSpec(rest +
                 "model: {pattern: \"*-*-\", vocab: 272, d_model: 128, d_ff: 256, "
                 "heads: 4, kv_heads: 2, head_dim: 32, positions: rope, "
                 "activation: swiglu}");
  EXPECT_EQ(whole.model.name, "custom");
  EXPECT_EQ(whole.model.pattern, "*-*-");
  EXPECT_EQ(whole.model.activation, Activation::kSwiglu);
  EXPECT_EQ(whole.model.norm, NormKind::kRmsNorm);
}

TEST(JobSpecTest, ARecipeKeepsTheOrderOfItsFieldsAndRules) {
  const JobSpec spec =
      ParsedSpec(With("recipe:\n"
                      "  preset: nvfp4-base\n"
                      "  set: {hadamard: 16, wgrad.rounding: stochastic, keep: 0+1}\n"
                      "  layers:\n"
                      "    - {match: mlp.*, set: {fprop: bf16, dgrad: default}}\n"
                      "    - {match: first 1 blocks, set: {all: mxfp8}}\n"));
  EXPECT_THAT(spec.recipe.set, ElementsAre(FieldSetting{"hadamard", "16"},
                                           FieldSetting{"wgrad.rounding", "stochastic"},
                                           FieldSetting{"keep", "0+1"}));
  ASSERT_EQ(spec.recipe.layers.size(), 2u);
  EXPECT_EQ(spec.recipe.layers[0].match, "mlp.*");
  EXPECT_EQ(spec.recipe.layers[0].set[1], (FieldSetting{"dgrad", "default"}));
  EXPECT_EQ(spec.recipe.layers[1].match, "first 1 blocks");
}

TEST(JobSpecTest, SectionsAndListsMayBeEmpty) {
  const JobSpec spec = ParsedSpec(With("guards:\nmetrics: {}\nchanges:\nrecipe:\n  set:\n"));
  EXPECT_EQ(spec, ParsedSpec(kShortestSpec));
}

TEST(JobSpecTest, DefaultsAreAValidSpecOfEveryField) {
  const std::string yaml = DefaultsYaml();
  JobSpec spec = ParsedSpec(yaml);
  EXPECT_EQ(spec.optimizer, OptimizerSpec());
  EXPECT_EQ(spec.guards, GuardSpec());
  EXPECT_EQ(spec.training.batch, TrainingSpec().batch);
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.path.find("[]") != std::string::npos || doc.path.starts_with("model.")) continue;
    const std::string name = doc.path.substr(doc.path.find_last_of('.') + 1);
    EXPECT_THAT(yaml, HasSubstr(absl::StrCat(name, ":")));
    EXPECT_FALSE(doc.meaning.empty()) << doc.path;
  }
  EXPECT_THAT(yaml, HasSubstr("  # Learning rate after the warm-up\n"
                              "  # Number in [1.0e-12, 10]\n"
                              "  lr: 0.001\n"));
  EXPECT_THAT(yaml, HasSubstr("  # Length of the run\n"
                              "  # Whole number in [1, 100000000], in steps\n"
                              "  # Required: this is an example.\n"
                              "  steps: 1000\n"));
}

TEST(JobSpecTest, AMistypedFieldIsReportedWithTheNearestName) {
  EXPECT_EQ(SpecError(With("trainng: {seed: 1}\n")),
            "line 5: trainng: unknown field, did you mean training?");
  EXPECT_EQ(SpecError(With("optimizer:\n  beta_1: 1\n")),
            "line 6: optimizer.beta_1: unknown field, did you mean beta1?");
  EXPECT_EQ(SpecError(With("metrics: {warmup_steps: 5}\n")),
            "line 5: metrics.warmup_steps: unknown field here, did you mean "
            "optimizer.warmup_steps?");
  EXPECT_EQ(SpecError(With("metrics: {zzz: 5}\n")),
            "line 5: metrics.zzz: unknown field; known here: precision_every, log_every");
}

TEST(JobSpecTest, ValuesOutOfRangeAreReportedWithTheRange) {
  EXPECT_EQ(SpecError(With("optimizer: {lr: -1, final_lr: 0}\n")),
            "line 5: optimizer.lr: -1 is not in [1.0e-12, 10]");
  EXPECT_EQ(SpecError(With("optimizer: {beta1: 1}\n")),
            "line 5: optimizer.beta1: 1 is not in [0, 0.999999]");
  EXPECT_EQ(SpecError(With("optimizer: {epsilon: nan}\n")),
            "line 5: optimizer.epsilon: nan is not in [1.0e-30, 1]");
  EXPECT_EQ(SpecError(With("resources: {ranks: 0}\n")),
            "line 5: resources.ranks: 0 is not in [1, 65536]");
}

TEST(JobSpecTest, ValuesOfAnotherTypeAreRefused) {
  EXPECT_EQ(SpecError(With("training2: 1\nresources: {threads: many}\n")),
            "2 problems:\n"
            "  line 5: training2: unknown field, did you mean training?\n"
            "  line 6: resources.threads: 'many' is not a whole number in [0, 1024]");
  for (const char* value : {"1.5", "\"4\"", "[4]", "{a: 4}", "", "~", "99999999999999999999", "1e3",
                            "0x10", "+4", " 4 5"}) {
    EXPECT_THAT(SpecError(With(absl::StrCat("resources: {threads: ", value, "}\n"))),
                HasSubstr("is not a whole number in [0, 1024]"))
        << value;
  }
  EXPECT_EQ(SpecError(With("optimizer: {lr: fast}\n")),
            "line 5: optimizer.lr: 'fast' is not a number in [1.0e-12, 10]");
  EXPECT_EQ(SpecError(With("optimizer: {lr: '0.1'}\n")),
            "line 5: optimizer.lr: the text '0.1' is not a number in [1.0e-12, 10]");
  EXPECT_EQ(SpecError(With("optimizer: {schedule: wds}\n")),
            "line 5: optimizer.schedule: 'wds' is not one of wsd, cosine, constant, did you mean "
            "wsd?");
  EXPECT_EQ(SpecError(With("optimizer: [lr]\n")),
            "line 5: optimizer: a list is not a map of lr, final_lr, beta1, beta2, epsilon, "
            "weight_decay, clip_norm, schedule, warmup_steps, decay_fraction, decay_shape");
  EXPECT_EQ(SpecError(With("changes: {at: lr-decay}\n")), "line 5: changes: a map is not a list");
  EXPECT_EQ(SpecError(With("output: {directory: [a]}\n")),
            "line 5: output.directory: a list is not text");
  EXPECT_EQ(SpecError("name: x\nmodel: tiny-hybrid\ntraining: {steps: 1000}\n"
                      "data: {train: [a], reset_at_documents: yes}\n"),
            "line 4: data.reset_at_documents: 'yes' is neither true nor false");
}

TEST(JobSpecTest, NamesAndPathsAreChecked) {
  const std::string rest = "\nmodel: tiny-hybrid\ndata: {train: [a]}\ntraining: {steps: 1000}\n";
  EXPECT_THAT(SpecError("name: a/b" + rest), HasSubstr("name: 'a/b' is not letters, digits"));
  EXPECT_THAT(SpecError("name: .." + rest), HasSubstr("'..' is not letters"));
  EXPECT_THAT(SpecError("name: " + std::string(64, 'x') + rest),
              HasSubstr("…' has 64 bytes; at most 63 are allowed"));
  EXPECT_THAT(SpecError("name: ''" + rest), HasSubstr("name: '' is not letters"));
  EXPECT_EQ(SpecError(With("output: {directory: \"a\\0b\"}\n")),
            "line 5: output.directory: 'a\\000b' is not a path or nothing");
}

TEST(JobSpecTest, AFieldGivenTwiceIsRefused) {
  EXPECT_EQ(SpecError(With("optimizer:\n  lr: 1\n  beta1: 0\n  lr: 2\n")),
            "line 8: optimizer.lr: given twice, first in line 6");
  EXPECT_EQ(SpecError(With("name: again\n")), "line 5: name: given twice, first in line 1");
  EXPECT_EQ(SpecError(With("recipe: {set: {fprop: bf16, fprop: nvfp4}}\n")),
            "line 5: recipe.set.fprop: set twice");
}

TEST(JobSpecTest, AllMissingFieldsAreReported) {
  const std::string error = SpecError("recipe: nvfp4\n");
  for (const char* field : {"name: missing; name of the job", "model: missing; ",
                            "data.train: missing; ", "training.steps: missing; "}) {
    EXPECT_THAT(error, HasSubstr(field));
  }
  EXPECT_THAT(SpecError(""), HasSubstr("4 problems:"));
  EXPECT_THAT(SpecError("# nothing yet\n"), HasSubstr("training.steps: missing"));
  EXPECT_EQ(SpecError("name: x\nmodel: tiny-hybrid\ntraining: {steps: 1000}\n"
                      "data:\n  train:\n    - weight: 2\n"),
            "line 6: data.train[0].path: missing; a text file, a .jsonl file (see text_field), "
            "either of them plain, .gz or .zst, a directory of such files, a token shard, or "
            "another trainer's tokens (.bin of GPT-2 trainers, .idx of Megatron); relative to the "
            "trainer's working directory");
}

TEST(JobSpecTest, ADocumentThatIsNotAMapIsRefused) {
  EXPECT_THAT(SpecError("just text\n"), HasSubstr("job: 'just text' is not a map of name, model"));
  EXPECT_THAT(SpecError("- a\n"), HasSubstr("job: a list is not a map"));
}

TEST(JobSpecTest, AtMostTenProblemsAreReported) {
  std::string more;
  for (int i = 0; i < 13; ++i) absl::StrAppend(&more, "zzz", i, ": 1\n");
  EXPECT_THAT(SpecError(With(more)), HasSubstr("13 problems:"));
  EXPECT_THAT(SpecError(With(more)), HasSubstr("… and 3 more"));
}

}  // namespace
}  // namespace nibble

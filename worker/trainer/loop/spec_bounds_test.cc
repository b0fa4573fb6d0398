// Validation and kernels agree: a step is made at both ends of the range of every number that a
// spec holds, and one beyond each end is refused with the field's name. The ranges are read from
// the description of the fields, so that a new field is swept from the day it exists.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "job/job_fields.h"
#include "job/job_spec.h"
#include "job/overrides.h"
#include "model/outline.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/loop/job_data.h"
#include "worker/trainer/loop/train_device.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/parameters.h"

namespace nibble {
namespace {

using Settings = std::vector<std::string>;

// Everything that a spec can hold numbers for, as small as it can be.
std::string BaseSpec() {
  const std::string corpus = testing::TempDir() + "/bounds_corpus.txt";
  static const bool written = [&] {
    std::ofstream file(corpus);
    for (int i = 0; i < 60'000; ++i) file << "sentence number " << i << (i % 9 ? ". " : ".\n\n");
    return true;
  }();
  EXPECT_TRUE(written);
  return absl::StrCat(R"(
name: bounds
model: {pattern: "M*-", vocab: 260, d_model: 4, d_ff: 4, heads: 2, kv_heads: 1, head_dim: 2,
        mamba_heads: 2, mamba_head_dim: 2, mamba_groups: 1, mamba_state: 2, conv_width: 2, chunk: 4}
recipe: bf16
data:
  train: [{path: )",
                      corpus, R"(}]
  phases: [{parts: 1, weights: [1]}]
  validation: [{path: )",
                      corpus, R"(}]
  sequence: 6
training: {steps: 1000, batch: 2}
)");
}

// Settings that accompany an end of a range: other fields that must fit it, and small ones, so that
// a wide model has few parameters and a long step few logits.
Settings GoesWith(const std::string& path, bool most) {
  const Settings one_token = {"model.vocab=1", "data.tokenizer=sentencepiece",
                              "data.tokenizer_model=none.model"};
  const auto with = [&](Settings more) {
    more.insert(more.end(), one_token.begin(), one_token.end());
    return more;
  };
  // A million heads take seconds per token.
  const auto with_few_tokens = [&](Settings more) {
    more.insert(more.end(), {"data.sequence=2", "training.batch=1"});
    return with(std::move(more));
  };
  if (path == "model.max_positions") {
    Settings settings = {"model.positions=learned", "data.sequence=1"};
    if (most) settings.push_back("model.d_model=1");
    return settings;
  }
  if (path == "model.rope_theta") return {"model.positions=rope"};
  if (path == "model.vocab") {
    return {"data.tokenizer=sentencepiece",
            "data.tokenizer_model=none.model",
            "model.d_model=1",
            "model.tied_head=true",
            "training.batch=1",
            "data.sequence=1"};
  }
  if (path == "init_from.step") return {"init_from.path=store"};
  if (path == "restarts.max_backoff") return {"restarts.backoff=0"};
  if (!most) return {};
  if (path == "model.d_model") return with({"model.pattern=\"-\"", "model.d_ff=1"});
  if (path == "model.d_ff") return with({"model.d_model=1", "model.pattern=\"-\""});
  if (path == "model.heads") return with_few_tokens({"model.d_model=1", "model.head_dim=1"});
  if (path == "model.kv_heads") {
    return with_few_tokens({"model.d_model=1", "model.head_dim=1", "model.heads=1048576"});
  }
  if (path == "model.head_dim") return with_few_tokens({"model.d_model=1", "model.heads=1"});
  if (path == "model.mamba_heads")
    return with_few_tokens({"model.d_model=1", "model.mamba_head_dim=1"});
  if (path == "model.mamba_head_dim")
    return with_few_tokens({"model.d_model=1", "model.mamba_heads=1"});
  if (path == "model.mamba_groups") {
    return with_few_tokens({"model.d_model=1", "model.mamba_heads=1048576",
                            "model.mamba_head_dim=1", "model.mamba_state=1"});
  }
  if (path == "model.mamba_state") return with_few_tokens({"model.d_model=1"});
  if (path == "model.conv_width" || path == "model.chunk") return {"data.sequence=2100"};
  if (path == "training.stop_at") return {"training.steps=100000000"};
  if (path == "optimizer.warmup_steps") {
    return {"training.steps=100000000", "optimizer.schedule=constant"};
  }
  // Attention takes time with the square of a sample's length: its edges are its own tests'.
  if (path == "data.sequence") {
    return with({"model.pattern=\"M-\"", "training.batch=1", "data.validation=[]",
                 "data.validation_fraction=0"});
  }
  if (path == "training.batch") return {"data.sequence=1"};
  if (path == "training.micro_batch") return {"data.sequence=1", "training.batch=65536"};
  if (path == "resources.min_ranks") {
    return {"training.batch=65536", "resources.max_ranks=65536"};
  }
  if (path == "resources.ranks") return {"training.batch=65536"};
  if (path == "guards.spike_window") return {"guards.spike=skip"};
  if (path == "optimizer.final_lr") return {"optimizer.lr=10"};
  return {};
}

absl::StatusOr<JobSpec> SpecAt(const std::string& path, const std::string& value,
                               Settings settings) {
  settings.push_back(absl::StrCat(absl::StrReplaceAll(path, {{"[]", "[0]"}}), "=", value));
  const absl::StatusOr<std::string> yaml = OverrideFields(BaseSpec(), settings);
  if (!yaml.ok()) return yaml.status();
  return ParseJobSpec(*yaml);
}

// A step of the real kernels on made-up tokens; the weights afterwards are finite.
void MakeOneStep(const JobSpec& spec) {
  const absl::StatusOr<Outline> outline = MakeOutline(spec.model);
  ASSERT_TRUE(outline.ok()) << outline.status();
  JobSpec bounded = spec;
  if (bounded.resources.threads == 0) bounded.resources.threads = 2;
  bounded.resources.memory_mib = 0;
  const auto device = MakeDevice(bounded);
  ASSERT_TRUE(device.ok()) << device.status();
  auto parameters = Parameters::Create((*device)->device(), *outline, spec.training.seed);
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  const std::unique_ptr<Collective> collective = CreateLocal();
  auto trainer = Trainer::Create(
      spec, {.device = (*device)->device(), .collective = *collective, .parameters = **parameters});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  StepReport report;
  const absl::Status status = (*trainer)->Step(
      [&spec](int64_t, int64_t) {
        absl::StatusOr<Batch> batch = MakeBatch(MicroBatch(spec), spec.data.sequence);
        if (!batch.ok()) return batch;
        for (size_t i = 0; i < batch->tokens.size(); ++i) {
          batch->tokens[i] = static_cast<int32_t>(i % spec.model.vocab);
          batch->targets[i] = static_cast<int32_t>((i + 1) % spec.model.vocab);
        }
        return batch;
      },
      report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::isfinite(report.sample.loss())) << report.sample.loss();
  EXPECT_TRUE(report.sample.updated()) << report.skip_reason;
  double sum = 0;
  for (size_t i = 0; i < outline->params.size(); ++i) {
    const float* const weight = (*parameters)->weight(static_cast<int64_t>(i));
    for (int64_t j = 0; j < outline->params[i].elements(); ++j) sum += weight[j];
  }
  EXPECT_TRUE(std::isfinite(sum));
}

// The job's data as a rank opens it, and its first batch.
void ReadOneBatch(const JobSpec& spec, const std::string& path) {
  const std::string directory =
      absl::StrCat(testing::TempDir(), "/bounds_", absl::StrReplaceAll(path, {{"[]", ""}}));
  const absl::Status prepared = JobData::Prepare(spec, directory).status();
  ASSERT_TRUE(prepared.ok()) << prepared;
  const absl::StatusOr<JobData> data = JobData::Open(spec, directory);
  ASSERT_TRUE(data.ok()) << data.status();
  const absl::StatusOr<Batch> batch = data->training().Build({.step = 0});
  ASSERT_TRUE(batch.ok()) << batch.status();
}

struct Ends {
  std::string least, most;
};

// Parses texts such as "[1, 16] where the pattern has M" and "0 or [1.0e-12, 10000]".
Ends EndsOf(const FieldDoc& doc) {
  const size_t open = doc.allowed.find('['), comma = doc.allowed.find(", ", open);
  const size_t close = doc.allowed.find(']', open);
  EXPECT_NE(open, std::string::npos) << doc.path << " " << doc.allowed;
  EXPECT_NE(close, std::string::npos) << doc.path << " " << doc.allowed;
  return {doc.allowed.substr(open + 1, comma - open - 1),
          doc.allowed.substr(comma + 2, close - comma - 2)};
}

// The next number towards `direction`, below the least or above the most.
std::string Beyond(const FieldDoc& doc, const std::string& end, int direction) {
  if (doc.type == "number") {
    return absl::StrFormat("%.17g",
                           std::nextafter(std::strtod(end.c_str(), nullptr), direction * HUGE_VAL));
  }
  if (end == "18446744073709551615") return "18446744073709551616";
  int64_t value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(end, &value)) << end;
  return absl::StrCat(value + direction);
}

std::vector<FieldDoc> NumericFields() {
  std::vector<FieldDoc> fields;
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.type == "number" || doc.type == "whole number") fields.push_back(doc);
  }
  EXPECT_GE(fields.size(), 50u);
  return fields;
}

TEST(SpecBoundsTest, AStepIsMadeAtBothEndsOfEveryRange) {
  for (const FieldDoc& doc : NumericFields()) {
    const Ends ends = EndsOf(doc);
    for (const bool most : {false, true}) {
      const std::string& value = most ? ends.most : ends.least;
      SCOPED_TRACE(absl::StrCat(doc.path, " = ", value));
      const absl::StatusOr<JobSpec> spec = SpecAt(doc.path, value, GoesWith(doc.path, most));
      ASSERT_TRUE(spec.ok()) << spec.status();
      if (spec->resources.ranks == 1) MakeOneStep(*spec);
    }
  }
}

TEST(SpecBoundsTest, DataOpensAtBothEndsOfEveryRange) {
  for (const FieldDoc& doc : NumericFields()) {
    if (!doc.path.starts_with("data.")) continue;
    const Ends ends = EndsOf(doc);
    for (const std::string& value : {ends.least, ends.most}) {
      SCOPED_TRACE(absl::StrCat(doc.path, " = ", value));
      Settings settings;
      if (doc.path != "data.validation[].document_end") settings = {"data.validation=[]"};
      if (doc.path == "data.sequence") {
        settings.insert(settings.end(), {"training.batch=1", "training.validate_every=0",
                                         "data.validation_fraction=0"});
      }
      const absl::StatusOr<JobSpec> spec = SpecAt(doc.path, value, settings);
      ASSERT_TRUE(spec.ok()) << spec.status();
      ReadOneBatch(*spec, doc.path);
    }
  }
}

TEST(SpecBoundsTest, OneBeyondAnEndIsRefusedByName) {
  for (const FieldDoc& doc : NumericFields()) {
    const Ends ends = EndsOf(doc);
    for (const bool most : {false, true}) {
      const std::string value = Beyond(doc, most ? ends.most : ends.least, most ? 1 : -1);
      SCOPED_TRACE(absl::StrCat(doc.path, " = ", value));
      const absl::Status status = SpecAt(doc.path, value, GoesWith(doc.path, most)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      const std::string path = absl::StrReplaceAll(doc.path, {{"[]", "[0]"}});
      EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
    }
  }
}

TEST(SpecBoundsTest, AModelOfAsManyBlocksAsAreAllowedMakesAStep) {
  std::string pattern;
  while (pattern.size() < 4096) pattern += "M*--"[pattern.size() % 4];
  const absl::StatusOr<JobSpec> spec =
      SpecAt("model.pattern", absl::StrCat("\"", pattern, "\""), {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  MakeOneStep(*spec);
  EXPECT_FALSE(SpecAt("model.pattern", absl::StrCat("\"", pattern, "M\""), {}).ok());
}

}  // namespace
}  // namespace nibble

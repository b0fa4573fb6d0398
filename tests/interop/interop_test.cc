// Models saved by transformers (make_fixtures.py): import, logits, and export.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/safetensors/reader.h"
#include "nlohmann/json.hpp"
#include "tests/interop/source_logits.h"
#include "worker/interop/hf_config.h"
#include "worker/interop/hf_export.h"
#include "worker/interop/hf_import.h"
#include "worker/interop/interop_testing.h"
#include "worker/interop/shard_index.h"

namespace nibble {
namespace {

constexpr const char* kFixtures = "tests/interop/fixtures/";

using TensorBytes = std::map<std::string, std::pair<FileDType, std::string>>;

// Every tensor of a directory's weight files.
TensorBytes TensorsIn(const std::string& directory) {
  TensorBytes tensors;
  for (const std::string& name : NamesIn(directory)) {
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(directory + "/" + name);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) continue;
    for (const TensorInfo& tensor : file->tensors()) {
      const auto* data = reinterpret_cast<const char*>(tensor.data.data());
      tensors[tensor.name] = {tensor.dtype, std::string(data, tensor.data.size())};
    }
  }
  return tensors;
}

std::unique_ptr<HfWeights> Open(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<HfWeights>> source = HfWeights::Open(directory);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? *std::move(source) : nullptr;
}

template <class T>
std::vector<T> Values(const SafetensorsFile& file, const char* name) {
  const TensorInfo* tensor = file.Find(name);
  std::vector<T> values;
  if (tensor == nullptr) return values;
  values.resize(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(T));
  return values;
}

class EveryClass : public testing::TestWithParam<const char*> {
 protected:
  const std::string fixture_ = std::string(kFixtures) + GetParam();
  const ScratchDirectory scratch_;
};

TEST_P(EveryClass, LogitsOfAnImportedModelMatchTransformers) {
  const std::unique_ptr<HfWeights> source = Open(fixture_);
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(Info(source->model_class()).model_type, GetParam());
  const absl::StatusOr<SafetensorsFile> expected =
      SafetensorsFile::Open(fixture_ + "/expected.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::vector<int64_t> saved_tokens = Values<int64_t>(*expected, "tokens");
  const std::vector<int32_t> tokens(saved_tokens.begin(), saved_tokens.end());
  const std::vector<float> theirs = Values<float>(*expected, "logits");
  const absl::StatusOr<std::vector<float>> ours = SourceLogits(*source, tokens);
  ASSERT_TRUE(ours.ok()) << ours.status();
  ASSERT_EQ(ours->size(), theirs.size());
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    largest = std::max(largest, std::abs(double{theirs[i]}));
    difference = std::max(difference, std::abs(double{theirs[i]} - (*ours)[i]));
  }
  RecordProperty("relative_difference", std::to_string(difference / largest));
  EXPECT_GT(largest, 0.5);
  EXPECT_LT(difference / largest, 1e-4);
}

TEST_P(EveryClass, ExportOfAnImportedModelGivesItsTensorsBack) {
  const std::unique_ptr<HfWeights> source = Open(fixture_);
  ASSERT_NE(source, nullptr);
  const TensorBytes before = TensorsIn(fixture_);
  const FileDType saved = before.begin()->second.first;
  const bool written_as_saved = saved != FileDType::kF16;
  const FileDType dtype = written_as_saved ? saved : FileDType::kF32;
  const absl::StatusOr<HfExportReport> report =
      ExportHf(*source, scratch_ / "out", {.dtype = dtype, .max_shard_bytes = 50'000});
  ASSERT_TRUE(report.ok()) << report.status();
  const std::unique_ptr<HfWeights> again = Open(scratch_ / "out");
  ASSERT_NE(again, nullptr);
  const TensorBytes after = TensorsIn(scratch_ / "out");
  if (written_as_saved) {
    EXPECT_EQ(after, before);
  } else {
    ASSERT_EQ(after.size(), before.size());
    for (const ParamInfo& param : source->outline().params) {
      std::vector<float> a(static_cast<size_t>(param.elements()));
      std::vector<float> b(a.size());
      ASSERT_TRUE(source->Read(param, absl::MakeSpan(a)).ok());
      ASSERT_TRUE(again->Read(param, absl::MakeSpan(b)).ok());
      EXPECT_EQ(a, b) << param.name;
    }
  }
}

// Fields in both are equal, and the described model is the same. The other fields that transformers
// writes are defaults; config.json's reader has checked those that matter.
TEST_P(EveryClass, ExportOfAnImportedModelGivesItsConfigBack) {
  const std::unique_ptr<HfWeights> source = Open(fixture_);
  ASSERT_NE(source, nullptr);
  HfConfigFacts facts;
  const nlohmann::json before = nlohmann::json::parse(ReadText(fixture_ + "/config.json"));
  facts.context = before.value("max_position_embeddings", facts.context);
  const absl::StatusOr<nlohmann::json> after = HfConfig(source->outline(), facts);
  ASSERT_TRUE(after.ok()) << after.status();
  int compared = 0;
  for (const auto& [field, value] : after->items()) {
    if (!before.contains(field) || field.ends_with("_pdrop")) continue;
    EXPECT_EQ(value, before[field]) << field;
    ++compared;
  }
  EXPECT_GE(compared, 14);
  const absl::StatusOr<HfModelConfig> again = SpecFromHfConfig(after->dump());
  ASSERT_TRUE(again.ok()) << again.status();
  ModelSpec spec = source->outline().spec;
  spec.name = again->spec.name;
  EXPECT_EQ(again->spec, spec);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EveryClass,
                         testing::Values("nemotron_h", "llama", "arcee", "gpt2"));

// A random model of a preset's family: the same kinds of layers, other sizes.
ModelSpec RandomRelative(const ModelSpec& preset, std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  ModelSpec spec = preset;
  const bool hybrid = preset.positions == Positions::kNone;
  const bool square_heads = preset.positions == Positions::kLearned;
  spec.pattern.clear();
  for (int64_t i = pick(1, 5); i > 0; --i) {
    spec.pattern += hybrid ? std::string(1, "M*-"[random() % 3]) : "*-";
  }
  spec.vocab = pick(1, 60);
  spec.kv_heads = pick(1, 3);
  spec.heads = square_heads ? spec.kv_heads : spec.kv_heads * pick(1, 3);
  spec.head_dim = 2 * pick(1, 5);
  spec.d_model = square_heads ? spec.heads * spec.head_dim : spec.heads * pick(1, 5);
  spec.d_ff = pick(1, 40);
  if (square_heads) spec.max_positions = pick(1, 30);
  spec.mamba_groups = pick(1, 3);
  spec.mamba_heads = spec.mamba_groups * pick(1, 3);
  spec.mamba_head_dim = pick(1, 6);
  spec.mamba_state = pick(1, 9);
  spec.conv_width = pick(1, 5);
  spec.chunk = pick(1, 300);
  spec.norm_eps = 1e-7 * static_cast<double>(pick(1, 1000));
  spec.init_std = 1e-3 * static_cast<double>(pick(1, 1000));
  if (preset.positions == Positions::kRope) {
    spec.rope_theta = 1.7 * static_cast<double>(pick(100, 1000000));
    spec.biases = random() % 2 == 0;
  }
  if (!hybrid) {
    spec.tied_head = random() % 2 == 0;
    spec.scale_output_init = false;  // initialisation only; not recorded in these classes' files
  }
  // Sizes that the pattern does not use are not written.
  if (spec.pattern.find('*') == std::string::npos) spec.heads = spec.kv_heads = spec.head_dim = 0;
  if (spec.pattern.find('-') == std::string::npos) spec.d_ff = 0;
  if (spec.pattern.find('M') == std::string::npos) {
    const ModelSpec none;
    spec.mamba_heads = spec.mamba_head_dim = spec.mamba_groups = spec.mamba_state = 0;
    spec.conv_width = none.conv_width;
    spec.chunk = none.chunk;
  }
  return spec;
}

TEST(Interop, RandomModelsOfEveryPresetsFamilySurviveExportAndImport) {
  std::mt19937_64 random(20);
  const ScratchDirectory scratch;
  for (const std::string& name : ModelPresetNames()) {
    for (int i = 0; i < 12; ++i) {
      ModelSpec spec = RandomRelative(*ModelPreset(name), random);
      spec.name = "out";
      RandomWeights source(spec, random());
      const int64_t shard = 200 + static_cast<int64_t>(random() % 20000);
      const absl::StatusOr<HfExportReport> report =
          ExportHf(source, scratch / "out",
                   {.dtype = FileDType::kF32, .max_shard_bytes = shard, .overwrite = true});
      ASSERT_TRUE(report.ok()) << report.status();
      const std::unique_ptr<HfWeights> again = Open(scratch / "out");
      ASSERT_NE(again, nullptr);
      EXPECT_EQ(again->outline().spec, spec) << name;
      for (const ParamInfo& param : source.outline().params) {
        std::vector<float> a(static_cast<size_t>(param.elements()));
        std::vector<float> b(a.size());
        ASSERT_TRUE(source.Read(param, absl::MakeSpan(a)).ok());
        ASSERT_TRUE(again->Read(param, absl::MakeSpan(b)).ok());
        ASSERT_EQ(a, b) << name << " " << spec.pattern << " " << param.name;
      }
    }
  }
}

}  // namespace
}  // namespace nibble

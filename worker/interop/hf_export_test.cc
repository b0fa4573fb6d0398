#include "worker/interop/hf_export.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/safetensors/reader.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_import.h"
#include "worker/interop/interop_testing.h"
#include "worker/interop/shard_index.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

HfExportReport Export(WeightSource& source, const std::string& path,
                      const HfExportOptions& options = {}) {
  const absl::StatusOr<HfExportReport> report = ExportHf(source, path, options);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : HfExportReport();
}

TEST(ExportHf, EqualWeightsGiveEqualFiles) {
  const ScratchDirectory scratch;
  for (const ModelSpec& spec : ClassSpecs()) {
    RandomWeights a(spec, 1);
    RandomWeights b(spec, 1);
    Export(a, scratch / "a", {.max_shard_bytes = 20'000, .overwrite = true});
    Export(b, scratch / "b", {.max_shard_bytes = 20'000, .overwrite = true});
    const std::vector<std::string> names = NamesIn(scratch / "a");
    EXPECT_EQ(names, NamesIn(scratch / "b"));
    for (const std::string& name : names) {
      EXPECT_EQ(ReadText(scratch / ("a/" + name)), ReadText(scratch / ("b/" + name))) << name;
    }
  }
}

TEST(ExportHf, Bf16IsTheRoundedWeight) {
  const ScratchDirectory scratch;
  for (const ModelSpec& spec : ClassSpecs()) {
    RandomWeights source(spec, 1);
    Export(source, scratch / spec.name);
    const auto again = HfWeights::Open(scratch / spec.name);
    ASSERT_TRUE(again.ok()) << again.status();
    for (const ParamInfo& param : source.outline().params) {
      std::vector<float> a(static_cast<size_t>(param.elements()));
      std::vector<float> b(a.size());
      ASSERT_TRUE(source.Read(param, absl::MakeSpan(a)).ok());
      ASSERT_TRUE((*again)->Read(param, absl::MakeSpan(b)).ok());
      const bool exact = param.name.ends_with("A_log") || param.name.ends_with(".D") ||
                         param.name.ends_with("dt_bias");
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], exact ? 0 : std::abs(a[i]) * 0x1p-8) << param.name;
      }
    }
  }
}

TEST(ExportHf, ShardsStayBelowTheirBoundAndContainEveryTensorOnce) {
  const ScratchDirectory scratch;
  RandomWeights source(ClassSpec("nemotron_h"), 1);
  const HfExportReport one = Export(source, scratch / "one");
  EXPECT_EQ(one.shards, 1);
  EXPECT_FALSE(fs::exists(scratch / "one/model.safetensors.index.json"));
  const int64_t bound = 15'000;  // above the largest tensor
  const HfExportReport many = Export(source, scratch / "many", {.max_shard_bytes = bound});
  EXPECT_GT(many.shards, 3);
  EXPECT_EQ(many.bytes, one.bytes);
  int64_t tensors = 0;
  int64_t bytes = 0;
  for (int64_t i = 1; i <= many.shards; ++i) {
    const auto file = SafetensorsFile::Open(scratch / "many/" + ShardFileName(i, many.shards));
    ASSERT_TRUE(file.ok()) << file.status();
    int64_t size = 0;
    for (const TensorInfo& tensor : file->tensors()) size += tensor.data.size();
    EXPECT_LE(size, bound);
    tensors += static_cast<int64_t>(file->tensors().size());
    bytes += size;
    EXPECT_EQ(file->metadata().at("format"), "pt");
  }
  EXPECT_EQ(tensors, one.tensors);
  EXPECT_EQ(bytes, one.bytes);
  const Json index = Json::parse(ReadText(scratch / "many/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], one.bytes);
  EXPECT_EQ(index["weight_map"].size(), static_cast<size_t>(one.tensors));
}

TEST(ExportHf, ATensorAboveTheBoundHasAShardOfItsOwn) {
  const ScratchDirectory scratch;
  RandomWeights source(ClassSpec("llama"), 1);
  const HfExportReport report = Export(source, scratch / "out", {.max_shard_bytes = 1});
  EXPECT_EQ(report.shards, report.tensors);
}

// Counts parameters rather than measures memory: only whole parameters could be kept.
TEST(ExportHf, ParametersAreReadAboutOnce) {
  const ScratchDirectory scratch;
  RandomWeights source(ClassSpec("llama"), 1);
  Export(source, scratch / "out");
  EXPECT_LE(source.reads, 2 * static_cast<int>(source.outline().params.size()));
}

TEST(ExportHf, AnExistingDirectoryIsRefusedWithoutOverwrite) {
  const ScratchDirectory scratch;
  RandomWeights first(ClassSpec("llama"), 1);
  RandomWeights second(ClassSpec("gpt2"), 2);
  Export(first, scratch / "out");
  EXPECT_EQ(ExportHf(second, scratch / "out", {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*HfWeights::Open(scratch / "out"))->model_class(), HfClass::kLlama);
  Export(second, scratch / "out", {.overwrite = true});
  EXPECT_EQ((*HfWeights::Open(scratch / "out"))->model_class(), HfClass::kGpt2);
  EXPECT_EQ(NamesIn(scratch.path()), std::vector<std::string>{"out"});
}

class FailingWeights : public RandomWeights {
 public:
  using RandomWeights::RandomWeights;
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override {
    if (param.name == "blocks.1.mlp.down.weight") return absl::DataLossError("a bad block");
    return RandomWeights::Read(param, out);
  }
};

TEST(ExportHf, ASourceThatFailsLeavesNothingBehind) {
  const ScratchDirectory scratch;
  FailingWeights source(ClassSpec("llama"), 1);
  const absl::Status status = ExportHf(source, scratch / "out", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ExportHf, AModelOfNoClassIsRefusedBeforeAnythingIsWritten) {
  const ScratchDirectory scratch;
  ModelSpec spec = ClassSpec("llama");
  spec.norm = NormKind::kLayerNorm;
  RandomWeights source(spec, 1);
  EXPECT_EQ(ExportHf(source, scratch / "out", {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ExportHf, OptionsOutOfBoundsAreNamed) {
  const ScratchDirectory scratch;
  RandomWeights source(ClassSpec("llama"), 1);
  const auto message = [&](const HfExportOptions& options) {
    const absl::Status status = ExportHf(source, scratch / "out", options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message({.dtype = FileDType::kF16}), "dtype: F16 is neither F32 nor BF16");
  EXPECT_EQ(message({.max_shard_bytes = 0}), "max_shard_bytes: 0 is not above 0");
  EXPECT_EQ(message({.context = -1}), "context: -1 is not above 0");
}

TEST(ExportHf, TheByteTokenizerIsExportedWithItsModel) {
  const ScratchDirectory scratch;
  ModelSpec spec = ClassSpec("llama");
  spec.vocab = 272;
  RandomWeights source(spec, 1, std::make_shared<ByteTokenizer>());
  EXPECT_TRUE(Export(source, scratch / "out").tokenizer);
  EXPECT_EQ(NamesIn(scratch / "out"),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                      "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(Json::parse(ReadText(scratch / "out/config.json"))["eos_token_id"], 256);
  EXPECT_EQ(Json::parse(ReadText(scratch / "out/generation_config.json"))["eos_token_id"], 256);
  const auto again = HfWeights::Open(scratch / "out");
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_NE((*again)->tokenizer(), nullptr);
  EXPECT_EQ((*again)->tokenizer()->label(), "bytes");
  EXPECT_EQ((*HfWeights::Open(scratch / "out", {.tokenizer = false}))->tokenizer(), nullptr);
  EXPECT_FALSE(Export(source, scratch / "bare", {.tokenizer = false}).tokenizer);
  EXPECT_EQ(NamesIn(scratch / "bare"),
            (std::vector<std::string>{"config.json", "model.safetensors"}));
}

TEST(ExportHf, ATokenizerAboveTheModelsVocabularyIsRefused) {
  const ScratchDirectory scratch;
  RandomWeights source(ClassSpec("llama"), 1, std::make_shared<ByteTokenizer>());
  const absl::Status status = ExportHf(source, scratch / "out", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "tokenizer: its vocabulary of 257 is over the model's, 96");
}

}  // namespace
}  // namespace nibble

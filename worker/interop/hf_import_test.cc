#include "worker/interop/hf_import.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/safetensors/writer.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_export.h"
#include "worker/interop/interop_testing.h"
#include "worker/interop/shard_index.h"

namespace nibble {
namespace {

struct Stored {
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, Stored>;

// An exported random model, to be damaged.
class Exported {
 public:
  explicit Exported(std::string_view model_type, int64_t shard_bytes = int64_t{1} << 30)
      : source_(ClassSpec(model_type), 3) {
    const absl::StatusOr<HfExportReport> report =
        ExportHf(source_, path(), {.dtype = FileDType::kF32, .max_shard_bytes = shard_bytes});
    EXPECT_TRUE(report.ok()) << report.status();
  }

  std::string path() const { return scratch_ / "model"; }
  std::string File(std::string_view name) const { return path() + "/" + std::string(name); }
  RandomWeights& source() { return source_; }

  // Rewrites model.safetensors after `change`.
  void Change(const std::function<void(StoredTensors&)>& change) {
    StoredTensors tensors;
    {
      const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(File(kWeightsFile));
      ASSERT_TRUE(file.ok()) << file.status();
      for (const TensorInfo& tensor : file->tensors()) {
        const auto* data = reinterpret_cast<const char*>(tensor.data.data());
        tensors[tensor.name] = {tensor.dtype, tensor.shape, {data, tensor.data.size()}};
      }
    }
    change(tensors);
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors) {
      const auto* data = reinterpret_cast<const std::byte*>(tensor.bytes.data());
      ASSERT_TRUE(
          writer.AddTensor(name, tensor.dtype, tensor.shape, {data, tensor.bytes.size()}).ok());
    }
    ASSERT_TRUE(writer.Write(File(kWeightsFile)).ok());
  }
  void ChangeConfig(const nlohmann::json& change) {
    nlohmann::json config = nlohmann::json::parse(ReadText(File("config.json")));
    config.update(change);
    WriteText(File("config.json"), config.dump());
  }

  void ExpectRefused(const std::string& words,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    const absl::Status status = HfWeights::Open(path()).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(words), absl::string_view::npos) << status;
    EXPECT_NE(status.message().find(path()), absl::string_view::npos) << status;
  }
  void ExpectReadsBack() {
    const auto opened = HfWeights::Open(path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const ParamInfo& param : source_.outline().params) {
      std::vector<float> a(static_cast<size_t>(param.elements()));
      std::vector<float> b(a.size());
      ASSERT_TRUE(source_.Read(param, absl::MakeSpan(a)).ok());
      ASSERT_TRUE((*opened)->Read(param, absl::MakeSpan(b)).ok());
      EXPECT_EQ(a, b) << param.name;
    }
  }

 private:
  const ScratchDirectory scratch_;
  RandomWeights source_;
};

TEST(HfWeights, ADescriptionNamesTheModelAndItsDirectory) {
  const Exported model("llama");
  const auto opened = HfWeights::Open(model.path() + "/");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->outline().spec.name, "model");
  EXPECT_NE((*opened)->description().find(model.path()), std::string::npos);
  EXPECT_EQ((*opened)->tokenizer(), nullptr);
}

TEST(HfWeights, TheTrainedLengthIsTheContextOfTheConfig) {
  Exported llama("llama");
  EXPECT_EQ((*HfWeights::Open(llama.path()))->trained_sequence(), HfExportOptions().context);
  llama.ChangeConfig({{"max_position_embeddings", 128}});
  EXPECT_EQ((*HfWeights::Open(llama.path()))->trained_sequence(), 128);
  llama.ChangeConfig({{"max_position_embeddings", nullptr}});
  EXPECT_EQ((*HfWeights::Open(llama.path()))->trained_sequence(), std::nullopt);
  Exported gpt2("gpt2");
  EXPECT_EQ((*HfWeights::Open(gpt2.path()))->trained_sequence(),
            gpt2.source().outline().spec.max_positions);
}

TEST(HfWeights, AMissingTensorIsNamed) {
  Exported model("llama");
  model.Change([](StoredTensors& t) { t.erase("model.layers.1.self_attn.k_proj.weight"); });
  model.ExpectRefused("model.layers.1.self_attn.k_proj.weight: is missing");
}

TEST(HfWeights, ASurplusTensorIsNamed) {
  Exported model("llama");
  model.Change([](StoredTensors& t) {
    t["model.layers.2.mlp.up_proj.weight"] = t["model.layers.1.mlp.up_proj.weight"];
  });
  model.ExpectRefused("\"model.layers.2.mlp.up_proj.weight\": is none of llama's");
}

TEST(HfWeights, AWrongShapeIsNamedWithBoth) {
  Exported model("gpt2");
  // The same number of elements, transposed.
  model.Change([](StoredTensors& t) { t["transformer.h.0.mlp.c_fc.weight"].shape = {80, 32}; });
  model.ExpectRefused("transformer.h.0.mlp.c_fc.weight: its shape is [80, 32], not [32, 80]");
}

TEST(HfWeights, AWrongTypeIsNamed) {
  Exported model("nemotron_h");
  model.Change([](StoredTensors& t) { t["backbone.norm_f.weight"].dtype = FileDType::kI32; });
  model.ExpectRefused("backbone.norm_f.weight: its type is I32, not F32, BF16 or F16");
}

TEST(HfWeights, ATruncatedFileIsAnError) {
  const Exported model("llama");
  const std::string whole = ReadText(model.File(kWeightsFile));
  for (const size_t size :
       {size_t{0}, size_t{7}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    WriteText(model.File(kWeightsFile), whole.substr(0, size));
    model.ExpectRefused("model.safetensors");
  }
}

TEST(HfWeights, MissingFilesAreNotFound) {
  const Exported model("llama");
  std::filesystem::remove(model.File(kWeightsFile));
  model.ExpectRefused("model.safetensors", absl::StatusCode::kNotFound);
  std::filesystem::remove(model.File("config.json"));
  model.ExpectRefused("config.json", absl::StatusCode::kNotFound);
}

TEST(HfWeights, AnErrorOfTheConfigNamesTheDirectory) {
  Exported model("llama");
  model.ChangeConfig({{"hidden_act", "gelu"}});
  model.ExpectRefused("config.json: hidden_act: \"gelu\"");
}

TEST(HfWeights, ATiedHeadIsAcceptedIfItEqualsTheEmbedding) {
  Exported model("gpt2");
  model.Change([](StoredTensors& t) { t["lm_head.weight"] = t["transformer.wte.weight"]; });
  model.ExpectReadsBack();
  model.Change([](StoredTensors& t) { t["lm_head.weight"].bytes[5] ^= 1; });
  model.ExpectRefused("lm_head.weight: tie_word_embeddings is true, and it is not the embedding");
}

TEST(HfWeights, NamesOfABareModelAreReadToo) {
  Exported model("gpt2");
  model.Change([](StoredTensors& t) {
    StoredTensors bare;
    for (const auto& [name, tensor] : t) bare[name.substr(name.find('.') + 1)] = tensor;
    bare["h.0.attn.bias"] = {FileDType::kU8, {1, 1, 2, 2}, std::string("\1\0\1\1", 4)};
    t = bare;
  });
  model.ExpectReadsBack();
}

TEST(HfWeights, ShardsAreReadByTheirIndex) {
  Exported model("nemotron_h", 20'000);
  EXPECT_TRUE(std::filesystem::exists(model.File(kIndexFile)));
  model.ExpectReadsBack();
}

TEST(HfWeights, AnIndexThatContradictsItsFilesIsRefused) {
  const Exported model("llama", 20'000);
  const nlohmann::json whole = nlohmann::json::parse(ReadText(model.File(kIndexFile)));
  const auto write = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json index = whole;
    change(index["weight_map"]);
    WriteText(model.File(kIndexFile), index.dump());
  };
  write([](nlohmann::json& map) { map.erase("model.norm.weight"); });
  model.ExpectRefused("\"model.norm.weight\": is in model-");
  write([](nlohmann::json& map) { map["model.extra"] = map["model.norm.weight"]; });
  model.ExpectRefused("\"model.extra\": model.safetensors.index.json lists it in model-");
  write([](nlohmann::json& map) { map["model.norm.weight"] = "model-00009-of-00009.safetensors"; });
  EXPECT_FALSE(HfWeights::Open(model.path()).ok());
  write([](nlohmann::json& map) { map["model.norm.weight"] = "../model.safetensors"; });
  model.ExpectRefused("\"model.norm.weight\"");
  WriteText(model.File(kIndexFile), whole.dump());
  const std::string shard = whole["weight_map"]["model.norm.weight"];
  std::filesystem::copy_file(model.File(shard), model.File(kWeightsFile));
  model.ExpectRefused("has both");
}

TEST(HfWeights, AParameterOfAnotherModelIsRefused) {
  const Exported model("llama");
  const auto opened = HfWeights::Open(model.path());
  ASSERT_TRUE(opened.ok());
  std::vector<float> out(32);
  EXPECT_EQ(
      (*opened)->Read({.name = "blocks.0.novelty", .shape = {32}}, absl::MakeSpan(out)).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      (*opened)->Read({.name = "final_norm.weight", .shape = {31}}, absl::MakeSpan(out)).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*opened)->Read((*opened)->outline().params[0], absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble

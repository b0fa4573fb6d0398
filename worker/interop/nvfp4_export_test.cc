// Quantised models: the files contain exactly what training's quantiser produces.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/safetensors/reader.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/minifloat.h"
#include "kernels/formats/scaling.h"
#include "kernels/gemm/expand.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_export.h"
#include "worker/interop/hf_import.h"
#include "worker/interop/interop_testing.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

// Magnitudes vary, and so do the scales of blocks.
class UnevenWeights : public RandomWeights {
 public:
  using RandomWeights::RandomWeights;
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override {
    absl::Status status = RandomWeights::Read(param, out);
    for (size_t i = 0; i < out.size(); ++i) out[i] *= 0.01f + static_cast<float>(i / 9 % 11);
    return status;
  }
};

ResolvedRecipe RecipeOf(const std::string& preset, const Outline& outline) {
  const absl::StatusOr<ResolvedRecipe> recipe = Resolve({.preset = preset}, outline, 0);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return recipe.ok() ? *recipe : ResolvedRecipe();
}

// A quantised weight, and the values it represents.
std::vector<float> QuantisersOwn(CpuBackend& backend, WeightSource& source, const ParamInfo& param,
                                 const OperandSpec& spec) {
  std::vector<float> weight(static_cast<size_t>(param.elements()));
  EXPECT_TRUE(source.Read(param, absl::MakeSpan(weight)).ok());
  absl::StatusOr<QuantizedTensor> tensor = QuantizedTensor::Create(
      backend.memory(), {.spec = spec, .rows = param.shape[0], .cols = param.shape[1]});
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  const ConstMatrix x = ConstMatrix::Of(weight.data(), param.shape[0], param.shape[1]);
  EXPECT_TRUE(backend.Quantize({.x = x, .row = {.out = &*tensor}}).ok());
  EXPECT_TRUE(Dequantize(*tensor, nullptr, weight.data()).ok());
  return weight;
}

class QuantisedFiles : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  const ModelSpec spec_ = ClassSpec(std::get<0>(GetParam()));
  UnevenWeights source_{spec_, 5};
  const ResolvedRecipe recipe_ = RecipeOf(std::get<1>(GetParam()), source_.outline());
  const ScratchDirectory scratch_;
};

TEST_P(QuantisedFiles, ReadingItGivesTheQuantisersOwnWeightsBitForBit) {
  const auto report = ExportHf(source_, scratch_ / "out", {.quantise = &recipe_, .threads = 1});
  ASSERT_TRUE(report.ok()) << report.status();
  const auto file = SafetensorsFile::Open(scratch_ / "out/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto backend = CpuBackend::Create({.threads = 1});
  ASSERT_TRUE(backend.ok());
  const Outline& outline = source_.outline();
  int64_t quantised = 0;
  std::set<int64_t> linears;
  const HfModelLayout layout = *HfLayout(outline);
  for (const HfTensor& tensor : layout.tensors) {
    const ParamInfo& param = outline.params[tensor.param];
    const OperandFormat format =
        param.linear < 0 ? std::nullopt : recipe_.layers[param.linear][OperandRole::kFpropWeight];
    if (!format.has_value()) {
      EXPECT_NE(file->Find(tensor.name), nullptr) << tensor.name;
      continue;
    }
    linears.insert(param.linear);
    ++quantised;
    const std::string module(tensor.module());
    const TensorInfo* packed = file->Find(module + ".weight_packed");
    const TensorInfo* scales = file->Find(module + ".weight_scale");
    const TensorInfo* global = file->Find(module + ".weight_global_scale");
    ASSERT_TRUE(packed && scales && global) << module;
    EXPECT_EQ(file->Find(tensor.name), nullptr);
    const int64_t in = param.shape[1];
    ASSERT_EQ(packed->shape, (std::vector<int64_t>{tensor.rows, in / 2}));
    ASSERT_EQ(scales->shape, (std::vector<int64_t>{tensor.rows, in / 16}));
    ASSERT_EQ(global->shape, std::vector<int64_t>{1});
    EXPECT_EQ(packed->dtype, FileDType::kU8);
    EXPECT_EQ(scales->dtype, FileDType::kF8E4M3);
    EXPECT_EQ(global->dtype, FileDType::kF32);
    float divisor;
    std::memcpy(&divisor, global->data.data(), sizeof(divisor));
    const float amax = std::strtof(
        file->metadata().at("amax:" + module + ".weight_global_scale").c_str(), nullptr);
    EXPECT_EQ(divisor, Nvfp4::ForTensor(amax, false).encode);

    const std::vector<float> own = QuantisersOwn(**backend, source_, param, *format);
    for (int64_t r = 0; r < tensor.rows; ++r) {
      for (int64_t c = 0; c < in; ++c) {
        const auto byte = static_cast<uint32_t>(packed->data[(r * in + c) / 2]);
        const float code = E2M1::Decode<float>(c % 2 == 0 ? byte & 15u : byte >> 4);
        const float scale =
            E4M3::Decode<float>(static_cast<uint32_t>(scales->data[r * (in / 16) + c / 16]));
        const float expected = own[(tensor.first_row + r) * in + c];
        const float read = code * Nvfp4::DecodeFactor<float>(scale, amax);
        ASSERT_EQ(std::bit_cast<uint32_t>(read), std::bit_cast<uint32_t>(expected))
            << tensor.name << " [" << r << ", " << c << "]";
        // As engines compute it, from the file's tensors alone.
        ASSERT_NEAR(code * (scale / divisor), expected, std::abs(expected) * 0x1p-22);
      }
    }
  }
  EXPECT_GT(quantised, 0);
  EXPECT_EQ(report->quantised_linears, static_cast<int64_t>(linears.size()));
}

TEST_P(QuantisedFiles, TheConfigIgnoresExactlyWhatStaysInHighPrecision) {
  ASSERT_TRUE(ExportHf(source_, scratch_ / "out", {.quantise = &recipe_, .threads = 1}).ok());
  const Json config = Json::parse(ReadText(scratch_ / "out/config.json"))["quantization_config"];
  EXPECT_EQ(config["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["strategy"], "tensor_group");
  std::set<std::string> ignored = config["ignore"];
  EXPECT_EQ(ignored.erase("lm_head"), 1u);
  const Outline& outline = source_.outline();
  size_t kept = 0;
  const HfModelLayout layout = *HfLayout(outline);
  for (const HfTensor& tensor : layout.tensors) {
    const ParamInfo& param = outline.params[tensor.param];
    if (param.linear < 0 || recipe_.layers[param.linear][OperandRole::kFpropWeight]) continue;
    std::string name(tensor.module());
    if (spec_.name == "nemotron_h") {
      name = "re:(backbone|model)" + name.substr(name.find('.'));
      for (size_t i = name.find('.'); i != std::string::npos; i = name.find('.', i + 2)) {
        name.insert(i, "\\");
      }
      name += "$";
    }
    EXPECT_TRUE(ignored.contains(name)) << name;
    ++kept;
  }
  EXPECT_EQ(kept > 0, std::string(std::get<1>(GetParam())) == "nvfp4");
  EXPECT_EQ(ignored.size(), kept);
}

INSTANTIATE_TEST_SUITE_P(Models, QuantisedFiles,
                         testing::Combine(testing::Values("nemotron_h", "llama"),
                                          testing::Values("nvfp4", "nvfp4-base")));

TEST(QuantisedExport, WholeBlocksBecomeRowsOfEqualScales) {
  const ScratchDirectory scratch;
  UnevenWeights source(ClassSpec("llama"), 5);
  const ResolvedRecipe recipe = RecipeOf("nvfp4", source.outline());
  ASSERT_EQ(recipe.layers[0][OperandRole::kFpropWeight]->block, (BlockShape{16, 16}));
  ASSERT_TRUE(ExportHf(source, scratch / "out", {.quantise = &recipe, .threads = 1}).ok());
  const auto file = SafetensorsFile::Open(scratch / "out/model.safetensors");
  const TensorInfo* scales = file->Find("model.layers.0.self_attn.q_proj.weight_scale");
  ASSERT_TRUE(scales);
  const size_t groups = scales->shape[1];
  std::set<std::byte> different;
  for (size_t i = 0; i < scales->data.size(); ++i) {
    EXPECT_EQ(scales->data[i], scales->data[i / groups / 16 * 16 * groups + i % groups]);
    different.insert(scales->data[i]);
  }
  EXPECT_GT(different.size(), 1u);
}

TEST(QuantisedExport, UnquantisedWeightsAreBf16) {
  const ScratchDirectory scratch;
  UnevenWeights source(ClassSpec("llama"), 5);
  const ResolvedRecipe recipe = RecipeOf("nvfp4", source.outline());
  ASSERT_TRUE(ExportHf(source, scratch / "out", {.quantise = &recipe, .threads = 1}).ok());
  const auto file = SafetensorsFile::Open(scratch / "out/model.safetensors");
  for (const TensorInfo& tensor : file->tensors()) {
    if (!tensor.name.ends_with(".weight")) continue;
    EXPECT_EQ(tensor.dtype, FileDType::kBF16) << tensor.name;
  }
}

TEST(QuantisedExport, TheImportRefusesAQuantisedModelByName) {
  const ScratchDirectory scratch;
  UnevenWeights source(ClassSpec("llama"), 5);
  const ResolvedRecipe recipe = RecipeOf("nvfp4", source.outline());
  ASSERT_TRUE(ExportHf(source, scratch / "out", {.quantise = &recipe, .threads = 1}).ok());
  EXPECT_NE(HfWeights::Open(scratch / "out").status().message().find("quantization_config"),
            absl::string_view::npos);
}

TEST(QuantisedExport, AFormatThatFilesCannotExpressIsRefusedByLayer) {
  const ScratchDirectory scratch;
  const auto message = [&](std::string_view model_type, const std::string& preset) {
    UnevenWeights source(ClassSpec(model_type), 5);
    const ResolvedRecipe recipe = RecipeOf(preset, source.outline());
    const absl::Status status =
        ExportHf(source, scratch / "out", {.quantise = &recipe, .threads = 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_NE(message("llama", "bf16").find("nothing to quantise"), std::string::npos);
  EXPECT_NE(message("llama", "mxfp8").find("blocks.0.attention.qkv: fprop.weight is mxfp8"),
            std::string::npos);
  EXPECT_NE(message("gpt2", "nvfp4").find("Conv1D"), std::string::npos);
}

TEST(QuantisedExport, ARecipeOfAnotherModelAndFp32AreRefused) {
  const ScratchDirectory scratch;
  UnevenWeights source(ClassSpec("llama"), 5);
  ResolvedRecipe recipe = RecipeOf("nvfp4", source.outline());
  EXPECT_EQ(ExportHf(source, scratch / "out", {.dtype = FileDType::kF32, .quantise = &recipe})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  recipe.layers.pop_back();
  EXPECT_EQ(ExportHf(source, scratch / "out", {.quantise = &recipe}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class OneBadNumber : public UnevenWeights {
 public:
  using UnevenWeights::UnevenWeights;
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override {
    absl::Status status = UnevenWeights::Read(param, out);
    if (param.name == "blocks.0.attention.out.weight") {
      out[3] = std::numeric_limits<float>::quiet_NaN();
    }
    return status;
  }
};

TEST(QuantisedExport, ANonFiniteWeightIsRefusedByItsParameter) {
  const ScratchDirectory scratch;
  OneBadNumber source(ClassSpec("llama"), 5);
  const ResolvedRecipe recipe = RecipeOf("nvfp4", source.outline());
  const absl::Status status =
      ExportHf(source, scratch / "out", {.quantise = &recipe, .threads = 1}).status();
  EXPECT_EQ(status.message(), "blocks.0.attention.out.weight: 1 of its values are not finite");
  EXPECT_TRUE(NamesIn(scratch.path()).empty());
}

}  // namespace
}  // namespace nibble

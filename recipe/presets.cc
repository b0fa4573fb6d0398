#include "recipe/presets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

// The blocks that the NVFP4 paper keeps in bf16 in its three models, by their number of blocks: 12B
// (62), 8B (52) and 1.2B (40). Its comparison with MXFP4 uses the 8B, with the same blocks kept.
const KeepRule kNvfp4Keep = {{60, {2, 8}}, {50, {0, 8}}, {40, {0, 4}}};
const KeepRule kMxfp4Keep = {{50, {0, 8}}, {40, {0, 4}}};

constexpr FormatOptions kNvfp4Options = {.format = Format::kNvfp4,
                                         .weight_block = {16, 16},
                                         .gradient_rounding = Rounding::kStochastic,
                                         .wgrad_hadamard = 16};
constexpr FormatOptions kMxfp4Options = {.format = Format::kMxfp4,
                                         .weight_block = {32, 32},
                                         .gradient_rounding = Rounding::kStochastic,
                                         .wgrad_hadamard = 32};
constexpr FormatOptions kFp8BlockOptions = {.format = Format::kFp8Block,
                                            .weight_block = {128, 128}};

// Attention and Mamba linears in FP8, the MLP in FP4 forward and FP8 in Wgrad; Dgrad in bf16.
std::vector<LayerRule> ZhouLayers(const std::string& fp4) {
  const std::vector<FieldSetting> fp8 = {{"fprop", "fp8-tensor"}, {"wgrad", "fp8-tensor"}};
  return {{"attention", fp8}, {"mamba", fp8}, {"mlp", {{"fprop", fp4}, {"wgrad", "fp8-tensor"}}}};
}

std::vector<Preset> MakePresets() {
  return {
      {.name = "bf16", .summary = "every linear layer in bf16: the reference"},
      {.name = "nvfp4",
       .summary = "NVFP4: weights 16x16, Hadamard 16 on Wgrad, stochastic gradients; in bf16 the "
                  "first 2 and last 8 blocks (8B: last 8, 1.2B: last 4, fewer than 40 blocks: last "
                  "15 %)",
       .set = {{"all", "nvfp4"}},
       .options = {kNvfp4Options},
       .keep = kNvfp4Keep},
      {.name = "nvfp4-base",
       .summary = "NVFP4 in every linear layer: 1x16 blocks, nearest rounding, no Hadamard; "
                  "ablations start here",
       .set = {{"all", "nvfp4"}}},
      {.name = "mxfp4",
       .summary =
           "MXFP4: weights 32x32, others 1x32, Hadamard 32 on Wgrad, stochastic gradients; in "
           "bf16 the last 8 blocks (1.2B: last 4, fewer than 40 blocks: last 15 %)",
       .set = {{"all", "mxfp4"}},
       .options = {kMxfp4Options},
       .keep = kMxfp4Keep},
      {.name = "mxfp8",
       .summary = "MXFP8 in every linear layer: E4M3, 1x32 blocks, nearest rounding",
       .set = {{"all", "mxfp8"}}},
      {.name = "fp8-block",
       .summary = "FP8: E4M3, weights 128x128, others 1x128, first 1 and last 2 blocks bf16",
       .set = {{"all", "fp8-block"}},
       .options = {kFp8BlockOptions},
       .keep = {{0, {1, 2}}}},
      {.name = "fp4-zhou",
       .summary = "Zhou et al.: MLP FP4 forward in 1x128 blocks, other linears FP8, Wgrad FP8, "
                  "Dgrad bf16; all=bf16 for the last 5-10 % of steps",
       .layers = ZhouLayers("fp4-block128")},
      {.name = "fp4-zhou-token",
       .summary = "fp4-zhou with one FP4 scale per token and per output channel",
       .layers = ZhouLayers("fp4-token-channel")},
  };
}

}  // namespace

KeepBlocks KeepFor(const KeepRule& rule, int64_t blocks) {
  if (rule.empty()) return {};
  const auto band = std::find_if(rule.begin(), rule.end(), [blocks](const KeepBand& candidate) {
    return blocks >= candidate.from_blocks;
  });
  KeepBlocks keep = {0, std::max<int64_t>(1, (15 * blocks + 50) / 100)};
  if (band != rule.end()) keep = band->keep;
  keep.last = std::min(keep.last, blocks);
  keep.first = std::min(keep.first, blocks - keep.last);
  return keep;
}

std::string KeepText(const KeepRule& rule) {
  if (rule.empty()) return "none";
  std::string text;
  for (const KeepBand& band : rule) {
    if (band.from_blocks > 0) {
      absl::StrAppend(&text, band.from_blocks, text.empty() ? " blocks or more: " : " or more: ");
    }
    const auto& [first, last] = band.keep;
    if (first > 0) absl::StrAppend(&text, "first ", first, last > 0 ? " and " : "");
    if (last > 0) absl::StrAppend(&text, "last ", last);
    if (band.from_blocks == 0) return text;
    text += "; ";
  }
  return text + "fewer: last 15 %";
}

const std::vector<Preset>& AllPresets() {
  static const std::vector<Preset>* const presets = new std::vector<Preset>(MakePresets());
  return *presets;
}

absl::StatusOr<const Preset*> FindPreset(std::string_view name) {
  std::vector<std::string> names;
  for (const Preset& preset : AllPresets()) {
    if (preset.name == name) return &preset;
    names.push_back(preset.name);
  }
  return absl::NotFoundError(absl::StrCat("preset: ", QuotedWithNearest(name, names),
                                          "; presets: ", absl::StrJoin(names, ", ")));
}

}  // namespace nibble

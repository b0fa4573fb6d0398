// The named recipes, as data. A preset sets each layer's formats, the options of each format, and
// the number of blocks that stay in bf16; fields and layer rules override it.
//
// Thread-safety: immutable tables and pure functions.
#ifndef NIBBLE_RECIPE_PRESETS_H_
#define NIBBLE_RECIPE_PRESETS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "recipe/fields.h"
#include "recipe/recipe.h"

namespace nibble {

// A preset's options for one format, used wherever a layer has that format, even if a field sets it
// in place of bf16.
struct FormatOptions {
  Format format = Format::kNvfp4;
  BlockShape weight_block = {1, 16};
  Rounding gradient_rounding = Rounding::kNearest;
  int wgrad_hadamard = 0;  // if both operands of Wgrad have this format
};

// Blocks at the ends that stay in bf16, by the size of the model: the first band applies whose
// `from_blocks` the model reaches. A model smaller than all bands keeps about 15 % of its blocks,
// at least one, all at the end. Without bands no blocks are kept.
struct KeepBand {
  int64_t from_blocks = 0;
  KeepBlocks keep;
};
using KeepRule = std::vector<KeepBand>;  // largest models first
// Never more blocks than the model has.
KeepBlocks KeepFor(const KeepRule& rule, int64_t blocks);
// "60 blocks or more: first 2 and last 8; 50 or more: last 8; fewer: last 15 %"; "none".
std::string KeepText(const KeepRule& rule);

struct Preset {
  std::string name;
  std::string summary;  // one line
  // Only formats. Rules that match no layer of a model are ignored: presets apply to all models.
  std::vector<FieldSetting> set;
  std::vector<LayerRule> layers;
  std::vector<FormatOptions> options;
  KeepRule keep;
};

const std::vector<Preset>& AllPresets();
// NotFound naming the nearest preset and all presets.
absl::StatusOr<const Preset*> FindPreset(std::string_view name);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_PRESETS_H_

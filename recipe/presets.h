// The recipes that have names, as data. A preset says each layer's formats, the options that go
// with a format, and how many blocks stay in bf16; fields and layer rules go over it.
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

// How a preset carries out one format, wherever a layer of its recipes uses it: also where a field
// puts it in place of bf16.
struct FormatOptions {
  Format format = Format::kNvfp4;
  BlockShape weight_block = {1, 16};
  Rounding gradient_rounding = Rounding::kNearest;
  int wgrad_hadamard = 0;  // where both operands of Wgrad are of this format
};

// Blocks at the ends that stay in bf16, by the size of the model: the first band whose
// `from_blocks` the model reaches. A smaller model than any band's keeps about 15 % of its blocks,
// at least one, all at the end. No band at all keeps none.
struct KeepBand {
  int64_t from_blocks = 0;
  KeepBlocks keep;
};
using KeepRule = std::vector<KeepBand>;  // largest models first
// Never more blocks than there are.
KeepBlocks KeepFor(const KeepRule& rule, int64_t blocks);

struct Preset {
  std::string name;
  std::string summary;  // one line
  // Formats alone. A rule that matches no layer of a model is as good as absent: presets are for
  // all models.
  std::vector<FieldSetting> set;
  std::vector<LayerRule> layers;
  std::vector<FormatOptions> options;
  KeepRule keep;
};

const std::vector<Preset>& AllPresets();
// NotFound naming the nearest preset and all of them.
absl::StatusOr<const Preset*> FindPreset(std::string_view name);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_PRESETS_H_

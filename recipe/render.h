// A resolved recipe to look at: each linear layer with the formats of its six operands, as an
// aligned table or as JSON.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_RENDER_H_
#define NIBBLE_RECIPE_RENDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

enum class Grouping : uint8_t {
  kNone,   // a row per layer
  kEqual,  // a row for neighbours of a kind that are alike: "mlp.up blocks 1-7"
};

// InvalidArgument where the recipe was resolved against a model of another number of layers.
absl::StatusOr<std::string> RenderTable(const ResolvedRecipe& recipe, const Outline& outline,
                                        Grouping grouping);

// {"model": …, "layers": [{"name", "kind", "block", "in", "out", "operands": {"fprop.activation":
// {"format": "nvfp4", "block": "1x16", "rounding": "nearest", "formula": "te-2.14", "hadamard": 16,
// "signs": "fixed"}, …}}]}; an operand in high precision is {"format": "bf16"}, formula is told of
// nvfp4, hadamard and signs where there is a transform.
absl::StatusOr<std::string> RenderJson(const ResolvedRecipe& recipe, const Outline& outline);

// InvalidArgument naming both numbers of layers where they differ.
absl::Status CheckLayers(const ResolvedRecipe& recipe, const Outline& outline);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_RENDER_H_

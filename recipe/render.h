// A resolved recipe to look at: each linear layer with the formats of its six operands, as an
// aligned table or as JSON.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_RENDER_H_
#define NIBBLE_RECIPE_RENDER_H_

#include <cstdint>
#include <string>
#include <vector>

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

// What differs between two recipes for one model, in the fewest words: "fprop: nvfp4 → bf16 in 12
// layers". Equal changes of many layers are one group.
//
// Thread-safety: pure functions.

struct RecipeChangeGroup {
  // "all" or a GEMM where all its operands go from one format to one other: then `from` and `to`
  // are formats ("nvfp4"). Else one operand ("wgrad.gradient"), and they say all of it ("nvfp4 1x16
  // stochastic hadamard16").
  std::string field;
  std::string from;
  std::string to;
  std::vector<int64_t> layers;  // ascending indices in Outline::linears
  friend bool operator==(const RecipeChangeGroup&, const RecipeChangeGroup&) = default;
};

struct RecipeDiff {
  std::vector<RecipeChangeGroup> groups;  // empty where nothing differs
};

// InvalidArgument where either was resolved against a model of another number of layers.
absl::StatusOr<RecipeDiff> Diff(const ResolvedRecipe& before, const ResolvedRecipe& after,
                                const Outline& outline);

// A line per group: "fprop: nvfp4 → bf16 in 12 layers: blocks 0-5"; "no difference" for none.
std::string DiffText(const RecipeDiff& diff, const Outline& outline);
// [{"field", "from", "to", "layers": [names]}]
std::string DiffJson(const RecipeDiff& diff, const Outline& outline);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_RENDER_H_

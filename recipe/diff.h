// What differs between two recipes for one model, in the fewest words: "fprop: nvfp4 → bf16 in 12
// layers". Equal changes of many layers are one group.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_DIFF_H_
#define NIBBLE_RECIPE_DIFF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

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

#endif  // NIBBLE_RECIPE_DIFF_H_

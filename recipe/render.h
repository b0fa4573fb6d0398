// Shows a resolved recipe: each linear layer with the formats of its six operands, as an aligned
// table or as JSON.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_RENDER_H_
#define NIBBLE_RECIPE_RENDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/operand_roles.h"
#include "recipe/recipe.h"

namespace nibble {

enum class Grouping : uint8_t {
  kNone,   // a row per layer
  kEqual,  // a row for equal neighbouring layers of a kind: "mlp.up blocks 1-7"
};

// InvalidArgument if the recipe was resolved against a model with another number of layers.
absl::StatusOr<std::string> RenderTable(const ResolvedRecipe& recipe, const Outline& outline,
                                        Grouping grouping);

// {"model": …, "layers": [{"name", "kind", "block", "in", "out", "operands": {"fprop.activation":
// {"format": "nvfp4", "block": "1x16", "rounding": "nearest", "formula": "te-2.14", "hadamard": 16,
// "signs": "fixed"}, …}}]}; an operand in high precision is {"format": "bf16"}, formula only for
// nvfp4, hadamard and signs only with a transform.
absl::StatusOr<std::string> RenderJson(const ResolvedRecipe& recipe, const Outline& outline);

// How cards compute the GEMMs of linear layers that have quantised operands; GEMMs with equal
// operands share a row. On a CPU all are emulated.
struct ProductRow {
  LinearGemm gemm = LinearGemm::kFprop;
  std::string a, b;    // the operands' formats, or bf16
  int capability = 0;  // of the cards: 90 is 9.0
  std::string path;    // "native FP4"
  std::string reason;
  int64_t linears = 0;
};
std::vector<ProductRow> ProductsOnCards(const ResolvedRecipe& recipe);
// "9.0 (H100, H200)".
std::string CapabilityName(int capability);

// InvalidArgument naming both numbers of layers if they differ.
absl::Status CheckLayers(const ResolvedRecipe& recipe, const Outline& outline);

// The differences between two recipes for one model, as briefly as possible: "fprop: nvfp4 → bf16
// in 12 layers". Equal changes of many layers form one group.
//
// Thread-safety: pure functions.

struct RecipeChangeGroup {
  // "all" or a GEMM if all its operands change from one format to another: then `from` and `to` are
  // formats ("nvfp4"). Otherwise one operand ("wgrad.gradient"), with complete specs ("nvfp4 1x16
  // stochastic hadamard16").
  std::string field;
  std::string from;
  std::string to;
  std::vector<int64_t> layers;  // ascending indices in Outline::linears
  friend bool operator==(const RecipeChangeGroup&, const RecipeChangeGroup&) = default;
};

struct RecipeDiff {
  std::vector<RecipeChangeGroup> groups;  // empty if nothing differs
};

enum class DiffDetail : uint8_t {
  kBrief,  // as above
  kFull,   // every operand with its complete spec, also of GEMMs that change format
};

// InvalidArgument if either was resolved against a model with another number of layers.
absl::StatusOr<RecipeDiff> Diff(const ResolvedRecipe& before, const ResolvedRecipe& after,
                                const Outline& outline, DiffDetail detail = DiffDetail::kBrief);

// One line per group: "fprop: nvfp4 → bf16 in 12 layers: blocks 0-5"; "no difference" without
// groups.
std::string DiffText(const RecipeDiff& diff, const Outline& outline);
// [{"field", "from", "to", "layers": [names]}]
std::string DiffJson(const RecipeDiff& diff, const Outline& outline);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_RENDER_H_

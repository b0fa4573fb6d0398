// The theoretical time of a recipe's matrix multiplications, relative to 16 bit.
//
// Counted: the three GEMMs of every linear layer, and attention's Q·Kᵀ and P·V as CountFlops counts
// them (causal, in 16 bit under every recipe; backward twice forward). Not counted: embedding,
// head, and the Mamba scan, which is the same under every recipe and no GEMM of a linear layer. A
// GEMM takes the time of its slower operand: FP4 a quarter of 16 bit, FP8 half.
//
// Counted in this way, LLaMA-125M at 2048 tokens (SwiGLU: three matrices of 768 x 3072 per MLP),
// with Dgrad in 16 bit, gives the figures of Zhou et al.'s Table 2, with its columns read as
// follows:
//   attention linears   FFN linears   Wgrad of the FFN (and of FP4 attention)   cost
//   FP4                 FP4           FP4                                       57.1 %
//   FP4 forward         FP8           FP8 (attention's too)                     69.6 %
//   FP8                 FP4           FP4                                       60.7 %
//   FP8                 FP4           FP8                                       66.1 %
// Their Table 3 (68.2 %, and 71.4 % with the last tenth of the steps in 16 bit) is reproduced with
// two matrices per MLP.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_COST_H_
#define NIBBLE_RECIPE_COST_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/recipe.h"
#include "recipe/timeline.h"

namespace nibble {

// Fractions of the total 16-bit time: in 16 bit they add up to 1.
struct GemmCost {
  double fprop = 0;
  double dgrad = 0;
  double wgrad = 0;
  double attention = 0;
  double total() const { return fprop + dgrad + wgrad + attention; }
};

// InvalidArgument for a recipe resolved against another model, a sequence below 1, or a model
// without matrix multiplications.
absl::StatusOr<GemmCost> CostOf(const ResolvedRecipe& recipe, const Outline& outline,
                                int64_t sequence);

// The cost over `steps` steps of a timeline. Also returns the errors of Resolve for its recipes.
absl::StatusOr<GemmCost> CostOf(const Timeline& timeline, const Outline& outline, int64_t sequence,
                                int64_t steps);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_COST_H_

// A model as the pieces that ranks exchange: the embedding, each block, and the head, in the order
// of the forward pass. The gradients of a unit are complete after its backward pass and are reduced
// together; its weights are gathered together.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_PLAN_UNITS_H_
#define NIBBLE_PLAN_UNITS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/gemm_path.h"
#include "recipe/recipe.h"

namespace nibble {

struct Unit {
  // Parameters whose gradients are complete with this unit. A tied head's weight is the
  // embedding's.
  int64_t parameters = 0;
  // The weights that the unit reads, between ranks: quantised linears packed, all others BF16.
  int64_t packed_bytes = 0;
  int64_t bf16_bytes = 0;     // the same, all in BF16
  int64_t working_bytes = 0;  // in the forms that its products read
  int64_t tied_bytes = 0;    // of each of these, the embedding's table that a tied head reads again
  double forward_flops = 0;  // per token
  bool block = false;        // recomputed, if blocks are
};

// blocks() + 2 units. `sequence`: tokens, for attention. InvalidArgument for a recipe that was
// resolved against another model.
absl::StatusOr<std::vector<Unit>> MakeUnits(const Outline& outline, const ResolvedRecipe& recipe,
                                            const GemmHardware& hardware, int64_t sequence);

// The largest value of `bytes` over a unit, and over two adjacent units together.
int64_t LargestUnit(std::span<const Unit> units, absl::FunctionRef<int64_t(const Unit&)> bytes);
int64_t LargestPair(std::span<const Unit> units, absl::FunctionRef<int64_t(const Unit&)> bytes);

}  // namespace nibble

#endif  // NIBBLE_PLAN_UNITS_H_

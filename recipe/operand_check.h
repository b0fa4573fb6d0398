// Whether an operand of a linear layer can be quantised as a recipe says: the spec itself, and the
// layer's dimensions against its blocks.
//
// Thread-safety: pure.
#ifndef NIBBLE_RECIPE_OPERAND_CHECK_H_
#define NIBBLE_RECIPE_OPERAND_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

// InvalidArgument naming the layer, the operand, and the spec's field or the dimension, its size
// and what does not divide it. `tokens`: 0 leaves that dimension unchecked.
absl::Status CheckOperand(const OperandSpec& spec, OperandRole role, const LinearInfo& layer,
                          int64_t tokens);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_OPERAND_CHECK_H_

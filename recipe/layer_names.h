// Operands and sets of layers in words, for tables and differences.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_LAYER_NAMES_H_
#define NIBBLE_RECIPE_LAYER_NAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

// "bf16", "nvfp4 16x16", "nvfp4 1x16 stochastic hadamard16 signs=none": all that differs from
// nearest rounding, no transform, fixed signs and the present formula. Equal names, equal specs.
std::string OperandName(const OperandFormat& operand);

// "blocks 2-53", "block 7", "blocks 0-1, 54-61". `blocks` ascend; neighbours in `among` (ascending
// too) are written as a range.
std::string BlockRanges(const std::vector<int64_t>& blocks, const std::vector<int64_t>& among);

// `layers`: ascending indices in outline.linears. "all 24 layers"; "4 layers: blocks 0-1" where
// they are whole blocks; "3 layers: mlp.up in blocks 1-5", by kind, else.
std::string DescribeLayers(const Outline& outline, const std::vector<int64_t>& layers);

// The blocks that have a layer of `kind` (of any kind where it is empty), ascending.
std::vector<int64_t> BlocksWith(const Outline& outline, const std::string& kind);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_LAYER_NAMES_H_

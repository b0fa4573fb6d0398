// The quantised copies of a linear layer on a card, before anything is allocated: which operands
// have one, in which form, how many bytes it takes, and how many a weight takes on its way between
// ranks. Follows worker/trainer/model/linear.cc and kernels/cuda/gemm/operand_path.h, which
// worker/trainer/model/rank_memory_test.cc checks.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_PLAN_COPIES_H_
#define NIBBLE_PLAN_COPIES_H_

#include <array>
#include <cstdint>

#include "model/outline.h"
#include "recipe/gemm_path.h"
#include "recipe/operand_roles.h"
#include "recipe/recipe.h"

namespace nibble {

inline constexpr int64_t kBf16Bytes = 2;
inline constexpr int64_t kFp32Bytes = 4;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The bytes that a buffer takes of a planned region, whose buffers begin at multiples of 256.
inline int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// Codes and scales of [rows, cols] quantised along the columns: cols · bits / 8 bytes per row, and
// a scale per block. Not counted: the scale of the whole tensor.
struct PackedBytes {
  int64_t codes = 0;
  int64_t scales = 0;
  int64_t total() const { return codes + scales; }
};
PackedBytes PackedSize(const OperandSpec& spec, int64_t rows, int64_t cols);

// The operands of a linear layer as the card's products want them.
struct LinearCopies {
  struct Copy {
    bool packed = false;    // codes and scales
    bool emulated = false;  // BF16 numbers that stand for the codes
    bool exists() const { return packed || emulated; }
  };
  std::array<Copy, kOperandRoles> operand;  // by OperandRole; none where the operand is BF16
  bool bf16_weight = false;                 // a product reads the weight in BF16
  bool keeps_input = false;                 // Wgrad reads the input in BF16

  const Copy& operator[](OperandRole role) const { return operand[static_cast<size_t>(role)]; }
  Copy& operator[](OperandRole role) { return operand[static_cast<size_t>(role)]; }
};
// A weight in square blocks that is emulated in both directions has one copy, that of Fprop.
LinearCopies PlanCopies(const LayerRecipe& recipe, const GemmHardware& hardware);

// The bytes of an operand's copy in a planned region; 0 if there is none. `tokens`: of the
// micro-batch.
int64_t CopyBytes(const LinearCopies& copies, const LayerRecipe& recipe, OperandRole role,
                  const LinearInfo& linear, int64_t tokens);
// The working copies of the weight.
int64_t WorkingWeightBytes(const LinearCopies& copies, const LayerRecipe& recipe,
                           const LinearInfo& linear);

// The bytes of the weight between ranks, in the form from which each rank makes its working copies:
// packed where both Fprop and Dgrad read it quantised, once if one quantisation in square blocks
// serves both, otherwise in both directions; BF16 where a product reads it in BF16 or packing saves
// nothing.
int64_t PackedWeightBytes(const LayerRecipe& recipe, const LinearInfo& linear);

}  // namespace nibble

#endif  // NIBBLE_PLAN_COPIES_H_

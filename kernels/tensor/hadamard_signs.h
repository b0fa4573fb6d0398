// Derives the signs of a transform from its spec.
//
// Thread-safety: pure.
#ifndef NIBBLE_KERNELS_TENSOR_HADAMARD_SIGNS_H_
#define NIBBLE_KERNELS_TENSOR_HADAMARD_SIGNS_H_

#include "kernels/formats/hadamard.h"
#include "kernels/formats/philox.h"
#include "recipe/operand_spec.h"

namespace nibble {

inline SignMask Signs(const HadamardSpec& spec) {
  switch (spec.signs) {
    case SignChoice::kFixed:
      return kDefaultSigns;
    case SignChoice::kGiven:
      return {{spec.mask[0], spec.mask[1], spec.mask[2], spec.mask[3]}};
    case SignChoice::kSeeded: {
      // The largest stream number is reserved for this, so that no tensor's rounding shares the
      // draw.
      const PhiloxWords<uint32_t> bits =
          RoundingBits<uint32_t>({.seed = spec.seed, .stream = 0xffffffffu, .step = 0}, 0, 0);
      return {{bits.word[0], bits.word[1], bits.word[2], bits.word[3]}};
    }
    case SignChoice::kNone:
      break;
  }
  return {};
}

// Whether two operands of one GEMM have the same transform, so that the transforms cancel.
inline bool SameTransform(const HadamardSpec& a, const HadamardSpec& b) {
  if (a.size != b.size) return false;
  const SignMask signs_a = Signs(a);
  const SignMask signs_b = Signs(b);
  for (int i = 0; i < a.size; ++i) {
    if (signs_a.Bit(i) != signs_b.Bit(i)) return false;
  }
  return true;
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_TENSOR_HADAMARD_SIGNS_H_

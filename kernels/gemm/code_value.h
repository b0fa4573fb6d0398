// The values of codes and of one-byte block scales, and the BF16 operand of emulation that they
// give: one definition for the CPU and for device code. NaN codes stay NaN, so that they appear in
// results.
//
// Plain C++ without Abseil: device code includes it. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_GEMM_CODE_VALUE_H_
#define NIBBLE_KERNELS_GEMM_CODE_VALUE_H_

#include <cstdint>
#include <type_traits>

#include "kernels/formats/bfloat16.h"
#include "kernels/formats/e8m0.h"
#include "kernels/formats/minifloat.h"

namespace nibble {

// Element: E2M1, E4M3 or E5M2.
template <class Element>
NIBBLE_LANES float CodeValue(uint32_t code) {
  bool finite = true;
  if constexpr (std::is_same_v<Element, E4M3>) finite = !IsNonFiniteE4M3(code);
  if constexpr (std::is_same_v<Element, E5M2>) finite = !IsNonFiniteE5M2(code);
  return finite ? Element::template Decode<float>(code) : BitCast<float>(0x7fc00000u);
}

NIBBLE_LANES float E8M0ScaleValue(uint32_t code) {
  return code == E8M0::kNanCode ? BitCast<float>(0x7fc00000u) : E8M0::Decode<float>(code);
}

// code · scale in BF16, with the code's sign also on zeros and NaN.
template <class Element>
NIBBLE_LANES uint16_t OperandBf16(uint32_t code, float scale) {
  const uint32_t magnitude = EncodeBf16(CodeValue<Element>(code) * scale) & 0x7fffu;
  return static_cast<uint16_t>(magnitude | ((code & Element::kSignBit) != 0 ? 0x8000u : 0u));
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_CODE_VALUE_H_

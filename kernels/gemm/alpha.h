// The contribution of an operand's tensor scale to the alpha of a GEMM: the formulas, for host and
// device. gemm.h has the definition.
//
// Plain C++ without Abseil: device code includes it. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_GEMM_ALPHA_H_
#define NIBBLE_KERNELS_GEMM_ALPHA_H_

#include <cstdint>

#include "kernels/formats/scaling.h"

namespace nibble {

struct AlphaPart {
  enum class Kind : uint8_t {
    kNone,      // no tensor scale
    kNvfp4,     // *value: the tensor's amax
    kScale,     // *value: the tensor's scale
    kE4M3Amax,  // *value: the tensor's amax, from which the scale is computed
    kE5M2Amax,
  };

  Kind kind = Kind::kNone;
  const float* value = nullptr;  // in the backend's memory
};

NIBBLE_LANES float FoldAlpha(float alpha, const AlphaPart& part) {
  switch (part.kind) {
    case AlphaPart::Kind::kNvfp4:
      return (alpha * *part.value) * Nvfp4::kOneOver2688;
    case AlphaPart::Kind::kScale:
      return alpha * *part.value;
    case AlphaPart::Kind::kE4M3Amax:
      return alpha * Fp32Scale<E4M3>::BlockScale(*part.value);
    case AlphaPart::Kind::kE5M2Amax:
      return alpha * Fp32Scale<E5M2>::BlockScale(*part.value);
    case AlphaPart::Kind::kNone:
      break;
  }
  return alpha;
}

NIBBLE_LANES float FoldAlpha(float alpha, const AlphaPart& a, const AlphaPart& b) {
  if (a.kind == AlphaPart::Kind::kNvfp4 && b.kind == AlphaPart::Kind::kNvfp4) {
    return Nvfp4::GemmAlpha(alpha, *a.value, *b.value);
  }
  return FoldAlpha(FoldAlpha(alpha, a), b);
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_ALPHA_H_

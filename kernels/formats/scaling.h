// From amax to scales and back, for every format: the only place with these formulas. All in FP32,
// in this order, without fused multiply-add or approximate reciprocals.
//
// amax arguments are not NaN (the amax pass skips and counts NaN); infinity is allowed.
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_SCALING_H_
#define NIBBLE_KERNELS_FORMATS_SCALING_H_

#include <cstdint>

#include "kernels/formats/e8m0.h"
#include "kernels/formats/lanes.h"
#include "kernels/formats/minifloat.h"

namespace nibble {

inline constexpr uint32_t kFloatMaxBits = 0x7f7fffffu;

template <class F>
NIBBLE_LANES F AtMostFloatMax(F positive) {
  return FromBits<F>(MinBits<LaneU<F>>(BitsOf<F>(positive), SplatBits<LaneU<F>>(kFloatMaxBits)));
}

// NVFP4: E2M1 elements, an E4M3 scale per block, an FP32 scale per tensor.
struct Nvfp4 {
  static constexpr float kOneSixth = BitCast<float>(0x3e2aaaabu);
  static constexpr float kOneOver2688 = BitCast<float>(0x39c30c31u);        // 1 / (6 · 448)
  static constexpr float kOneOver36x448x448 = BitCast<float>(0x34149b93u);  // 1 / (6 · 448)²

  // The factors of a whole tensor; computed once from its amax.
  struct TensorScale {
    float amax;
    float encode;         // S_enc
    float encode_over_6;  // S_enc · fp32(1/6)
    float decode;         // 1 / S_enc
    bool divide_first;    // the formula of Transformer Engine before 2.14
  };

  NIBBLE_LANES static TensorScale ForTensor(float amax, bool divide_first) {
    float encode = AtMostFloatMax<float>(2688.0f / amax);
    if (amax == 0.0f || encode == 0.0f) encode = 1.0f;
    return {amax, encode, encode * kOneSixth, 1.0f / encode, divide_first};
  }

  // A block's scale before rounding to E4M3; may be infinite.
  template <class F>
  NIBBLE_LANES static F UnroundedScale(F block_amax, const TensorScale& tensor) {
    return tensor.divide_first ? F((block_amax / 6.0f) * tensor.encode)
                               : F(block_amax * tensor.encode_over_6);
  }

  // Code and value of a block's E4M3 scale.
  template <class F>
  NIBBLE_LANES static RoundedLanes<F> BlockScale(F block_amax, const TensorScale& tensor) {
    const F scaled = UnroundedScale<F>(block_amax, tensor);
    RoundedLanes<F> scale = E4M3::Nearest<F>(BitsOf<F>(AtMostFloatMax<F>(scaled)));
    scale.code &= E4M3::kMagnitudeMask;
    return scale;
  }

  // The factor of an element before rounding to E2M1.
  template <class F>
  NIBBLE_LANES static F EncodeFactor(F block_scale, const TensorScale& tensor) {
    return AtMostFloatMax<F>(1.0f / (block_scale * tensor.decode));
  }

  // The factor from an element's code value back to the tensor's value.
  template <class F>
  NIBBLE_LANES static F DecodeFactor(F block_scale, float amax) {
    return (block_scale * amax) * kOneOver2688;
  }

  // The alpha of a GEMM of two NVFP4 operands, with the tensor scales that the operands leave out.
  NIBBLE_LANES static float GemmAlpha(float alpha, float amax_a, float amax_b) {
    return ((alpha * amax_a) * amax_b) * kOneOver36x448x448;
  }
};

// MXFP4 and MXFP8: a power of two per block, rounded up so that the largest value never saturates.
template <class Element>
struct MxScale {
  template <class F = float>
  NIBBLE_LANES static LaneU<F> BlockScale(F block_amax) {
    return E8M0::EncodeRoundedUp<Element, F>(BitsOf<F>(block_amax));
  }
};

// FP32 scales (per 128-block, per row, per tensor): amax over the element's largest value.
template <class Element>
struct Fp32Scale {
  template <class F = float>
  NIBBLE_LANES static F BlockScale(F amax) {
    return AtMostFloatMax<F>(amax / Element::Max());
  }
  template <class F = float>
  NIBBLE_LANES static F EncodeFactor(F scale) {
    return AtMostFloatMax<F>(1.0f / scale);
  }
};

// A block's scale as stored, and the factors of its elements.
struct BlockScale {
  uint32_t bits;  // E4M3 or E8M0 code, or FP32 bits
  float value;
  float encode;   // 0 if the scale is 0: all codes of the block are then +0
  float emulate;  // the factor of codes in the BF16 operand: 1 if the scale is left out
};

NIBBLE_LANES BlockScale Nvfp4Block(float amax, const Nvfp4::TensorScale& tensor) {
  const RoundedLanes<float> scale = Nvfp4::BlockScale<float>(amax, tensor);
  const float encode = scale.code == 0 ? 0.0f : Nvfp4::EncodeFactor<float>(scale.magnitude, tensor);
  return {scale.code, scale.magnitude, encode, scale.magnitude};
}

template <class Element>
NIBBLE_LANES BlockScale MxBlock(float amax) {
  const uint32_t code = MxScale<Element>::BlockScale(amax);
  const float value = E8M0::Decode(code);
  return {code, value, E8M0::Reciprocal(code), value};
}

template <class Element>
NIBBLE_LANES BlockScale Fp32Block(float amax) {
  const float scale = Fp32Scale<Element>::BlockScale(amax);
  const float encode = scale == 0.0f ? 0.0f : Fp32Scale<Element>::EncodeFactor(scale);
  return {BitsOf<float>(scale), scale, encode, 1.0f};
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_SCALING_H_

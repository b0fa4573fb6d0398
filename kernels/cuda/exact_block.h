// One block of 16 values directly from the formulas of kernels/formats, including NaN and
// infinities: the naive kernel runs it, the tile kernels fall back to it for tiles with non-finite
// numbers, and it is the only place on the GPU that computes statistics.
//
// Thread-safety: pure functions, apart from the sums passed in.
#ifndef NIBBLE_KERNELS_CUDA_EXACT_BLOCK_H_
#define NIBBLE_KERNELS_CUDA_EXACT_BLOCK_H_

#include <cstdint>

#include "kernels/cuda/block_encode.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/hadamard.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"
#include "kernels/formats/statistics.h"

namespace nibble::gpu {

// Skips NaN for amax and counts it with the infinities.
struct ExactAmax {
  uint32_t bits = 0;
  uint32_t non_finite = 0;

  NIBBLE_LANES void Add(float value) {
    const uint32_t magnitude = BitsOf<float>(value) & kMagnitudeBits;
    non_finite += magnitude >= kInfinityBits ? 1u : 0u;
    if (magnitude <= kInfinityBits) bits = MaxBits<uint32_t>(bits, magnitude);
  }
};

// The Hadamard transform of size 16 in place; the input is first rounded to BF16.
NIBBLE_LANES void HadamardExactly(float (&v)[16], const uint32_t* sign_bits) {
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) v[i] = FromBits<float>(RoundToBf16Bits<float>(v[i]));
  HadamardSumsTile16<float>(v, sign_bits);
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) v[i] = FromBits<float>(RoundToBf16Bits<float>(v[i] * 0.25f));
}

struct ExactBlock {
  BlockCodes codes;
  uint32_t scale_code;
  float scale;
  float encode;  // 0 if the scale is 0
};

NIBBLE_LANES ExactBlock EncodeExactly(const float (&v)[16], uint32_t amax_bits,
                                      const Nvfp4::TensorScale& tensor, bool stochastic,
                                      const PhiloxWords<uint32_t>& random) {
  const RoundedLanes<float> scale = Nvfp4::BlockScale<float>(FromBits<float>(amax_bits), tensor);
  ExactBlock block = {{{0, 0}}, scale.code, scale.magnitude, 0.0f};
  if (scale.code == 0) return block;
  block.encode = Nvfp4::EncodeFactor<float>(scale.magnitude, tensor);
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) {
    const float value = v[i] * block.encode;
    const uint32_t byte = (random.word[i / 4] >> (8 * (i % 4))) & 0xffu;
    const uint32_t code = stochastic ? E2M1::EncodeStochastic(value, byte) : E2M1::Encode(value);
    block.codes.word[i / 8] |= code << (4 * (i % 8));
  }
  return block;
}

NIBBLE_LANES void AddStatistics(const float (&v)[16], const ExactBlock& block, const StatNorm& norm,
                                StatSums& sums) {
  const float decode = Nvfp4::DecodeFactor<float>(block.scale, norm.amax);
  float error = 0;
  float square = 0;
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = BitsOf<float>(v[i]) & kMagnitudeBits;
    const uint32_t code = (block.codes.word[i / 8] >> (4 * (i % 8))) & E2M1::kMagnitudeMask;
    if (bits >= kInfinityBits) continue;
    const float a = FromBits<float>(bits) * norm.factor;
    const float d = a - E2M1::Decode<float>(code) * decode;
    error = error + d * d;
    square = square + a * a;
    if (bits != 0) {
      ++sums.nonzero;
      if (code == 0) ++sums.underflow;
    }
    if ((BitsOf<float>(v[i] * block.encode) & kMagnitudeBits) > E2M1::kMaxBits) ++sums.clipped;
  }
  const SplitSum<float> e = SplitGroupSum<float>(error);
  const SplitSum<float> s = SplitGroupSum<float>(square);
  sums.error_coarse += e.coarse;
  sums.error_fine += e.fine;
  sums.square_coarse += s.coarse;
  sums.square_fine += s.fine;
  const uint64_t bits = BitsOf<float>(block.scale);
  if (bits != 0) {
    sums.max_scale = sums.max_scale > bits ? sums.max_scale : bits;
    sums.min_scale = sums.min_scale < bits ? sums.min_scale : bits;
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_EXACT_BLOCK_H_

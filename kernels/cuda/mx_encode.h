// The block arithmetic of the fast MXFP4 kernels: what they need besides block_encode.h, whose
// roundings they share. A scale is a power of two, so that products by it are exact wherever they
// are not far below the smallest step: there is no tensor whose range needs other formulas.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CUDA_MX_ENCODE_H_
#define NIBBLE_KERNELS_CUDA_MX_ENCODE_H_

#include <cstdint>

#include "kernels/cuda/block_encode.h"
#include "kernels/formats/e8m0.h"
#include "kernels/formats/hadamard.h"

namespace nibble::gpu {

// The factor of elements of a block with this E8M0 code, with the power of two that EncodeBlock
// needs.
NIBBLE_LANES float MxFactorOf(uint32_t code) { return E8M0::Reciprocal(code) * 0x1p-3f; }

NIBBLE_LANES EmulationTable MxEmulationTableFor(uint32_t code) {
  return EmulationTableOf((BitsOf<float>(E8M0::Decode(code)) >> 16) * 0x00010001u);
}

// The larger amax of two blocks of 8 pairs each; NaN if there is one.
NIBBLE_LANES float PairsAmax(const uint32_t (&pair)[2][8]) {
  return LargerMagnitude(PairsAmax(pair[0]), PairsAmax(pair[1]));
}

// The sums of the transform of size 32, of values whose signs are applied: those of its halves,
// which are transforms of size 16, and of both together.
NIBBLE_LANES void HadamardSums32(float (&low)[16], float (&high)[16]) {
  constexpr uint32_t kNoSigns[16] = {};
  HadamardSumsTile16<float>(low, kNoSigns);
  HadamardSumsTile16<float>(high, kNoSigns);
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) {
    const float sum = low[i] + high[i];
    high[i] = low[i] - high[i];
    low[i] = sum;
  }
}
// The transform, rounded; the first and the last 16 values, each split as SignsOfSplit takes them.
NIBBLE_LANES void Hadamard32(float (&low)[16], float (&high)[16], uint32_t (&split)[2][8]) {
  HadamardSums32(low, high);
  const float norm = HadamardNorm(32);
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) {
    low[i] *= norm;
    high[i] *= norm;
  }
  SplitPairs(low, split[0]);
  SplitPairs(high, split[1]);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_MX_ENCODE_H_

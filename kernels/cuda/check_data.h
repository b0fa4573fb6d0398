// Inputs for checks and measurements: matrices of various kinds, the same for the same seed.
//
// Thread-safety: pure, apart from the memory written.
#ifndef NIBBLE_KERNELS_CUDA_CHECK_DATA_H_
#define NIBBLE_KERNELS_CUDA_CHECK_DATA_H_

#include <cstdint>

#include "common/thread_pool.h"

namespace nibble {

enum class Temper : uint8_t {
  kNormal,       // typical of training
  kHeavyTails,   // cubes of normal values, and outliers
  kMixedBlocks,  // every 16×16 block with its own scale, over 2^30
  kSubnormal,
  kZeros,  // of both signs, with a few other values
  kConstant,
  kHuge,        // up to FP32's maximum
  kTiny,        // around 1e-38
  kDyadic,      // few bits: ties and exact multiplications
  kBadNumbers,  // normal, sprinkled with NaN and infinities of both signs
  kAnyBits,     // any FP32 or BF16 bit pattern
  kCount,
};
const char* TemperName(Temper temper);

// Counter-based random bits.
uint64_t Mix(uint64_t seed, uint64_t index);

// Fills [rows, cols], rows `stride` elements apart, and the gaps between rows. `bf16`: `to` is of
// uint16_t, otherwise of float.
void FillMatrix(ThreadPool& pool, Temper temper, uint64_t seed, bool bf16, void* to, int64_t rows,
                int64_t cols, int64_t stride);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_CHECK_DATA_H_

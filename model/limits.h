// The bounds of a model's sizes. Validation refuses values outside them, the reference page of job
// specs is generated from them, and kernels size their fixed buffers by them, so that a valid spec
// runs. worker/trainer/loop/spec_bounds_test.cc runs a step at every bound.
//
// Thread-safety: constants.
#ifndef NIBBLE_MODEL_LIMITS_H_
#define NIBBLE_MODEL_LIMITS_H_

#include <cstdint>

namespace nibble {

// Far beyond any model, and small enough that no number derived from a valid spec (parameters,
// bytes, operations) overflows 64 bits.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;  // of any vector a token has
inline constexpr int64_t kMaxRows = int64_t{1} << 24;   // of a table: vocabulary, positions
inline constexpr int64_t kMaxBlocks = 4096;

// The convolution keeps a register per tap.
inline constexpr int kMaxConvWidth = 16;
// The scan keeps a number per token of a chunk on the stack.
inline constexpr int kMaxScanChunk = 1024;

// [least, most]
struct RealBounds {
  double least;
  double most;
};

// Kernels compute in FP32: a norm's 1 / rms has a finite cube, and no value of a valid spec rounds
// to zero or to infinity.
inline constexpr RealBounds kNormEpsBounds = {1e-12, 1};
inline constexpr RealBounds kRopeThetaBounds = {1, 1e12};
inline constexpr RealBounds kInitStdBounds = {1e-9, 10};

}  // namespace nibble

#endif  // NIBBLE_MODEL_LIMITS_H_

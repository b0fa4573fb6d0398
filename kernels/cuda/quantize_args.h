// Arguments of the kernels: plain data, passed by value or stored in device memory.
//
// Ownership: borrows all pointers, which point to device memory. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_
#define NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_

#include <cstdint>

#include "kernels/cuda/block_encode.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"
#include "kernels/formats/statistics.h"

namespace nibble::gpu {

// The layout of QuantHead (kernels/tensor/quantized_tensor.h), which device code cannot include;
// cuda_backend.cc asserts that the two agree.
struct DeviceHead {
  float amax;
  uint32_t reserved;
  uint64_t non_finite;
  StatSums stats;
};

// x: [rows, cols], rows `stride` elements apart.
struct Source {
  const void* data;
  int64_t rows;
  int64_t cols;
  int64_t stride;
  bool f32;  // otherwise BF16
};

// Per copy, in device memory: the result of the amax pass, and what PrepareCopy computes from it
// for the quantising kernel. Amax and counts are zero between operations: PrepareCopy reads and
// clears them.
struct CopyFigures {
  uint32_t amax_bits;
  uint32_t
      tickets;  // finished thread blocks of the amax pass; only used in the first copy's figures
  unsigned long long non_finite;
  // Computed by PrepareCopy.
  Nvfp4::TensorScale tensor;
  StatNorm norm;
  uint32_t plain_range;  // RangeIsPlain
  float factor[128];     // FactorOf, by scale code
};

// One copy, in its own coordinates: lines of the copy are quantised along `length`.
struct CopyArgs {
  CopyFigures* figures;
  DeviceHead* head;
  const float* amax;             // given, or null: found by the amax pass
  const float* statistics_amax;  // or null
  // Outputs; null if not requested.
  uint8_t* codes;  // [lines, length] FP4, two per byte
  int64_t code_stride;
  uint8_t* scales;  // [lines or lines / 16, length / 16] E4M3
  int64_t scale_stride;
  uint16_t* emulated;  // BF16, in the source's layout or, transposed, the copy's
  int64_t emulated_stride;
  bool emulated_transposed;
  bool column;
  bool square;  // blocks 16×16, otherwise 1×16
  bool stochastic;
  bool hadamard;  // transform of size 16
  bool divide_first;
  bool count_non_finite;   // in the quantising pass, because there is no amax pass
  uint32_t sign_bits[16];  // of the transform: 0 or 0x80000000
  // Block (line, group) uses random bits first_block + line · row_blocks + group.
  RandomStream random;
  RoundKeys keys;  // of random.seed
  uint64_t first_block;
  uint64_t row_blocks;
};

// Up to two copies of one source.
struct QuantizeArgs {
  Source x;
  int copies;
  CopyArgs copy[2];
};

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_

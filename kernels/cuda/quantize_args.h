// What the host hands to the kernels: plain data, passed by value or lying in device memory.
//
// Ownership: borrows all pointers, all of device memory. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_
#define NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_

#include <cstdint>

#include "kernels/cuda/block_encode.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"
#include "kernels/formats/statistics.h"

namespace nibble::gpu {

// The bytes of QuantHead (kernels/tensor/quantized_tensor.h), which device code cannot include;
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
  bool f32;  // else BF16
};

// Per copy, in device memory: what the amax pass finds, and what PrepareCopy makes of it for the
// quantising kernel. Amax and counts are zero between operations: PrepareCopy takes and clears
// them.
struct CopyFigures {
  uint32_t amax_bits;
  uint32_t
      tickets;  // thread blocks of the amax pass that are done; used in the first copy's figures
  unsigned long long non_finite;
  // Made by PrepareCopy.
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
  // Outputs; null where not wanted.
  uint8_t* codes;  // [lines, length] FP4, two to a byte
  int64_t code_stride;
  uint8_t* scales;  // [lines or lines / 16, length / 16] E4M3
  int64_t scale_stride;
  uint16_t* emulated;  // BF16, of the source's layout or, transposed, the copy's
  int64_t emulated_stride;
  bool emulated_transposed;
  bool column;
  bool square;  // blocks 16×16, else 1×16
  bool stochastic;
  bool hadamard;  // of size 16
  bool divide_first;
  bool count_non_finite;   // in the quantising pass: no amax pass does
  uint32_t sign_bits[16];  // of the transform: 0 or 0x80000000
  // Random bits of block (line, group) are those of first_block + line · row_blocks + group.
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

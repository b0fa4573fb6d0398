// Arguments of the kernels: plain data, passed by value or stored in device memory.
//
// Ownership: borrows all pointers, which point to device memory. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_
#define NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_

#include <cstdint>

#include "kernels/cuda/block_encode.h"
#include "kernels/formats/hadamard.h"
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

// The values of Element and ScaleKind (recipe/operand_spec.h), which device code cannot include.
enum class CodeType : uint8_t { kE2M1, kE4M3, kE5M2 };
enum class ScaleType : uint8_t { kE4M3, kE8M0, kF32 };

// x: [rows, cols], rows `stride` elements apart.
struct Source {
  const void* data;
  int64_t rows;
  int64_t cols;
  int64_t stride;
  bool f32;  // otherwise BF16
  // Stands for the squared ReLU of the data, rounded to BF16. Only of BF16.
  bool squared_relu;
};

// Per copy, in device memory: the result of the amax pass, and what PrepareCopies computes from it
// for the quantising kernel. Amax and counts are zero between operations: PrepareCopies reads and
// clears them.
struct CopyFigures {
  uint32_t amax_bits;
  uint32_t
      tickets;  // finished thread blocks of the amax pass; only used in the first copy's figures
  unsigned long long non_finite;
  // Computed by PrepareCopies.
  Nvfp4::TensorScale tensor;
  StatNorm norm;
  uint32_t plain_range;  // RangeIsPlain
  uint32_t random_step;  // of the random bits
  PhiloxStart start;     // of the draws of the first block, and of all if CopyArgs::one_start
  float factor[128];     // FactorOf, by scale code
};

// One copy, in its own coordinates: lines of the copy are quantised along `length`.
struct CopyArgs {
  CopyFigures* figures;
  DeviceHead* head;
  const float* amax;             // given, or null
  const float* statistics_amax;  // or null
  // [lines], FP32 bits, of blocks that are whole lines: found by the amax pass. Otherwise null.
  uint32_t* line_amax;
  // Outputs; null if not requested.
  uint8_t* codes;  // [lines, length], two per byte if FP4
  int64_t code_stride;
  uint8_t* scales;       // [lines / block_lines, length / block_length] of scale_type
  int64_t scale_stride;  // in scales
  uint16_t* emulated;    // BF16, in the source's layout or, transposed, the copy's
  int64_t emulated_stride;
  bool emulated_transposed;
  bool column;
  bool stochastic;
  // The kernels of NVFP4 do not take this copy. They take NVFP4 without a transform or with one of
  // size 16, and read the five fields that follow.
  bool general;
  bool square;    // blocks 16×16, otherwise 1×16
  bool hadamard;  // transform of size 16
  bool divide_first;
  uint32_t sign_bits[32];  // of a transform of at most this size: 0 or 0x80000000
  // Whether there is an amax pass; otherwise the quantising pass counts NaN and infinities, and
  // finds the amax of the head if it was not given.
  bool amax_pass;
  bool find_amax;
  // Any format.
  CodeType code_type;
  ScaleType scale_type;
  int block_lines;  // 0: all of them
  int block_length;
  int hadamard_size;  // 0: no transform
  SignMask signs;
  // Block (line, group) uses random bits first_block + line · row_blocks + group.
  RandomStream random;
  const uint64_t* step;  // instead of random.step, or null
  RoundKeys keys;        // of random.seed
  uint64_t first_block;
  uint64_t row_blocks;
  // Whether the numbers of all blocks share their upper half. Otherwise, which takes a tensor of
  // 2^36 elements, the tile kernels use the exact formulas.
  bool one_start;
};

// Up to two copies of one source.
struct QuantizeArgs {
  Source x;
  int copies;
  CopyArgs copy[2];
};

// The same, with a place for each copy.
struct TilePair {
  Source x;
  bool row;
  bool column;
  CopyArgs row_copy;
  CopyArgs column_copy;
};

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_QUANTIZE_ARGS_H_

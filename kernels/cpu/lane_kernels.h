// The inner loops of the CPU quantisers, once per instruction set. Each works on a patch of the
// source that its caller chose to fit the caches, on one thread.
//
// They guarantee: for a patch without NaN they give the bits of cpu/reference.h. They do not test
// for NaN; they return the largest |x| they found as FP32 bits, and the caller redoes a patch whose
// result is above infinity with the reference. That keeps every test for non-finite numbers out of
// the inner loop.
//
// Ownership: borrows all pointers. Thread-safety: pure, apart from the memory written through
// `args`.
#ifndef NIBBLE_KERNELS_CPU_LANE_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LANE_KERNELS_H_

#include <cstdint>

#include "kernels/formats/hadamard.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"
#include "kernels/formats/statistics.h"
#include "recipe/operand_spec.h"

namespace nibble::cpu {

// A patch of a high-precision matrix. The number of rows is a multiple of 16 if it is read by
// columns, that of columns if it is read by rows: groups of 16 along the quantised direction are
// whole.
struct Patch {
  const void* data;
  bool bf16;
  int64_t stride;
  int64_t rows;
  int64_t cols;
  // A Hadamard transform of size 16 done in registers; other sizes are applied beforehand (see
  // `hadamard_*`).
  bool hadamard16;
  // Signs of that transform: 0 or 0x80000000 per element.
  uint32_t sign_bits[16];
};

// The layout of the factors of each group of 16: for a row patch, element (copy row, group) is at
// [(row >> line_shift) · stride + group], since rows of one block share them; for a column patch at
// [group · stride + column].
struct GroupFactors {
  const float* encode = nullptr;   // 0 for a block whose scale is 0: its codes become +0
  const float* emulate = nullptr;  // block scale, or 1 if it is not part of the BF16 operand
  const float* decode = nullptr;   // normalised, for statistics
  int64_t stride = 0;
  int line_shift = 0;
};

// The source of the factors of `operand_*`: scales found in registers, from the largest |x| of a
// block of the given numbers of copy rows and groups of 16; or, for blocks that are whole lines, a
// factor for each copy row of the patch.
struct OperandBlocks {
  ScaleKind scale = ScaleKind::kE4M3;
  int64_t lines = 0;
  int64_t groups = 0;
  const float* line_encode = nullptr;
};

struct EncodeArgs {
  Patch x;
  Element element;
  bool stochastic;
  // True: NVFP4 1×16, where the group is the block; scales are found in registers and `factors` is
  // ignored.
  bool inline_nvfp4;
  OperandBlocks blocks;
  Nvfp4::TensorScale tensor;
  GroupFactors factors;
  RandomStream random;
  uint64_t first_block = 0;      // global index / 16 of the patch's first element in the copy
  uint64_t copy_row_blocks = 0;  // groups per copy row of the unsharded tensor
  // Outputs, at the patch's origin; null if not requested. Strides are those of copy rows.
  uint8_t* codes = nullptr;
  int64_t codes_stride = 0;
  uint8_t* scales = nullptr;  // E4M3 codes, with inline_nvfp4
  int64_t scales_stride = 0;
  uint16_t* emulated = nullptr;
  int64_t emulated_stride = 0;
  bool emulated_transposed = false;  // column patches: writes the copy's layout, not the source's
  int64_t prefetch_rows = 0;         // distance of the next patch in the source
  bool stream = false;               // outputs too large for the cache: write past it
  bool round_emulated = false;       // code · scale may not be exact in BF16 (subnormal MX scales)
  StatSums* stats = nullptr;
  StatNorm norm;
};

struct LaneKernels {
  const char* name;
  int64_t lanes;  // FP32 numbers per vector
  // Largest |x| of a patch, as FP32 bits.
  uint32_t (*amax_rows)(const Patch& x);
  // The same over columns; a maximum up to `at_least` (a number's bits) need not be exact. `plain`
  // is the largest |x| without the transform.
  uint32_t (*amax_columns)(const Patch& x, uint32_t at_least, uint32_t* plain);
  // Largest |x| of each group of 16, laid out like GroupFactors; returns the largest of all. Row
  // patches take `lines` rows together and write the first row of each such set (without a
  // transform).
  uint32_t (*group_amax_rows)(const Patch& x, int64_t lines, float* out, int64_t stride);
  uint32_t (*group_amax_columns)(const Patch& x, float* out, int64_t stride);
  uint32_t (*encode_rows)(const EncodeArgs& args);
  uint32_t (*encode_columns)(const EncodeArgs& args);
  // The same copies if only the BF16 operand is requested, in the source's layout; cheaper. Also
  // return a value at or above infinity for numbers so large or small that `encode_*` must handle
  // them. Row patches are at least 16 · lanes wide; column patches 2 · lanes, with a transform only
  // for NVFP4 from BF16. Null in scalar.
  uint32_t (*operand_rows)(const EncodeArgs& args);
  uint32_t (*operand_columns)(const EncodeArgs& args);
  // The Hadamard transform of any size along rows or columns into `out`, [rows, cols] BF16 with row
  // stride `out_stride`; the source is first rounded to BF16. Handles NaN.
  void (*hadamard_rows)(const Patch& x, int size, const SignMask& signs, uint16_t* out,
                        int64_t out_stride);
  void (*hadamard_columns)(const Patch& x, int size, const SignMask& signs, uint16_t* out,
                           int64_t out_stride);

  static const LaneKernels scalar, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LANE_KERNELS_H_

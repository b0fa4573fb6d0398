// The inner loops of the CPU quantisers, once per instruction set. Each works on a patch of the
// source that its caller chose to fit the caches, on one thread.
//
// Their promise: for a patch without NaN they give the bits of cpu/reference.h. They do not look
// for NaN; they return the largest |x| they saw as FP32 bits, and the caller redoes a patch whose
// result is above infinity with the reference. That keeps every test for bad numbers out of the
// inner loop.
//
// Ownership: borrows all pointers. Thread-safety: pure, but for the memory written through `args`.
#ifndef NIBBLE_KERNELS_CPU_LANE_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LANE_KERNELS_H_

#include <cstdint>

#include "kernels/formats/hadamard.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"
#include "kernels/formats/statistics.h"
#include "recipe/operand_spec.h"

namespace nibble::cpu {

// A patch of a high-precision matrix. Rows are a multiple of 16 where it is read by columns,
// columns where it is read by rows: groups of 16 along the quantised direction are whole.
struct Patch {
  const void* data;
  bool bf16;
  int64_t stride;
  int64_t rows;
  int64_t cols;
  // A Hadamard transform of size 16 done in registers; other sizes come prepared (see
  // `hadamard_*`).
  bool hadamard16;
  // Of that transform: 0 or 0x80000000 per element.
  uint32_t sign_bits[16];
};

// Where the factors of each group of 16 are: element (copy row, group) of a row patch lies at
// [(row >> line_shift) · stride + group], since rows of one block share them; of a column patch at
// [group · stride + column].
struct GroupFactors {
  const float* encode = nullptr;   // 0 for a block whose scale is 0: its codes become +0
  const float* emulate = nullptr;  // block scale, or 1 where it stays out of the BF16 operand
  const float* decode = nullptr;   // normalised, for statistics
  int64_t stride = 0;
  int line_shift = 0;
};

// Where `operand_*` have their factors from: scales found in registers, from the largest |x| of a
// block of so many copy rows by so many groups of 16; or, for blocks that are whole lines, a factor
// for each copy row of the patch.
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
  // True: NVFP4 1×16, where the group is the block; scales are found in registers and `factors`
  // is not used.
  bool inline_nvfp4;
  OperandBlocks blocks;
  Nvfp4::TensorScale tensor;
  GroupFactors factors;
  RandomStream random;
  uint64_t first_block = 0;      // global index / 16 of the patch's first element in the copy
  uint64_t copy_row_blocks = 0;  // groups per copy row of the unsharded tensor
  // Outputs, at the patch's origin; null where not wanted. Strides are of copy rows.
  uint8_t* codes = nullptr;
  int64_t codes_stride = 0;
  uint8_t* scales = nullptr;  // E4M3 codes, of inline_nvfp4
  int64_t scales_stride = 0;
  uint16_t* emulated = nullptr;
  int64_t emulated_stride = 0;
  bool emulated_transposed = false;  // column patches: write the copy's layout, not the source's
  int64_t prefetch_rows = 0;         // where in the source the next patch lies
  bool stream = false;          // outputs too large to be found in the cache later: write around it
  bool round_emulated = false;  // code · scale may not be exact in BF16 (subnormal MX scales)
  StatSums* stats = nullptr;
  StatNorm norm;
};

struct LaneKernels {
  const char* name;
  int64_t lanes;  // FP32 numbers in a vector
  // Largest |x| of a patch, as FP32 bits.
  uint32_t (*amax_rows)(const Patch& x);
  // Likewise; what is not above `at_least` (a number's bits) need not be told from it. `plain` is
  // the largest |x| without the transform.
  uint32_t (*amax_columns)(const Patch& x, uint32_t at_least, uint32_t* plain);
  // Largest |x| of each group of 16, laid out like GroupFactors; returns the largest of all. Row
  // patches take `lines` rows together and write the first row of each such set (no transform
  // then).
  uint32_t (*group_amax_rows)(const Patch& x, int64_t lines, float* out, int64_t stride);
  uint32_t (*group_amax_columns)(const Patch& x, float* out, int64_t stride);
  uint32_t (*encode_rows)(const EncodeArgs& args);
  uint32_t (*encode_columns)(const EncodeArgs& args);
  // The same copies where only the BF16 operand is wanted, in the source's layout, for less. Return
  // a value above or at infinity also for numbers so large or small that they are better left to
  // `encode_*`. Row patches are 16 · lanes wide or more; column patches 2 · lanes, with a
  // transform only for NVFP4 from BF16. Null in scalar.
  uint32_t (*operand_rows)(const EncodeArgs& args);
  uint32_t (*operand_columns)(const EncodeArgs& args);
  // The Hadamard transform of any size along rows or columns into `out`, [rows, cols] BF16 with row
  // stride `out_stride`; the source is rounded to BF16 first. Handles NaN.
  void (*hadamard_rows)(const Patch& x, int size, const SignMask& signs, uint16_t* out,
                        int64_t out_stride);
  void (*hadamard_columns)(const Patch& x, int size, const SignMask& signs, uint16_t* out,
                           int64_t out_stride);
};

// Null where this build or this processor lacks the instruction set.
const LaneKernels* ScalarKernels();
const LaneKernels* Avx2Kernels();
const LaneKernels* Avx512Kernels();

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LANE_KERNELS_H_

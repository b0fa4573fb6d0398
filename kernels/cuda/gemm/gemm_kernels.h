// The small kernels around the matmuls, as the host launches them: converting operands, arranging
// scales, finishing sums, comparing results. All enqueue on `stream` and return at once with the
// status of the launch. All pointers are to device memory. Every kernel but LaunchAlpha is bound by
// the bytes it moves.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_GEMM_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_GEMM_GEMM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/gemm/alpha.h"

namespace nibble::gpu {

// FP32 scales: that of line i and slice s is data[i / line_block · line_stride + s · slice_stride];
// without data, 1. See LineScales in kernels/gemm/gemm_scales.h.
struct ScaleView {
  const float* data = nullptr;
  int64_t line_block = 1;
  int64_t line_stride = 0;
  int64_t slice_stride = 0;
};

// *out = FoldAlpha(alpha, a, b).
cudaError_t LaunchAlpha(float alpha, const AlphaPart& a, const AlphaPart& b, float* out,
                        cudaStream_t stream);

// c = round(((sums · alpha) · a) · b (+ c)), with alpha = FoldAlpha(alpha, alpha_a, alpha_b).
// sums: [rows, cols] FP32; c: [rows, cols] FP32 or BF16, and may be `sums`.
struct FinishArgs {
  const float* sums = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t sums_stride = 0;
  void* c = nullptr;
  int64_t c_stride = 0;
  bool c_bf16 = false;
  bool accumulate = false;
  float alpha = 1.0f;
  AlphaPart alpha_a, alpha_b;
  ScaleView a, b;         // of rows and of columns
  int64_t first_row = 0;  // the row of the whole result that row 0 is, for `a`
};
cudaError_t LaunchFinish(const FinishArgs& args, cudaStream_t stream);

// out[rows, cols] FP32 = x[rows, cols] BF16, rows `stride` apart.
cudaError_t LaunchWiden(const uint16_t* x, int64_t rows, int64_t cols, int64_t stride, float* out,
                        cudaStream_t stream);

enum class CodeElement : uint8_t { kE2M1, kE4M3, kE5M2 };
enum class CodeScale : uint8_t { kNone, kE4M3, kE8M0 };
enum class CodeOutput : uint8_t { kBf16, kF32, kE4M3 };

// Codes to numbers: OperandBf16(code, scale) as BF16 or widened to FP32, with the scales of blocks
// of block_rows × block_cols (a multiple of 16); or, from E2M1 without scales, E4M3 codes. Codes
// and output start on multiples of 16 bytes.
struct ExpandArgs {
  const uint8_t* codes = nullptr;  // [rows, cols], two E2M1 per byte, the even one low
  int64_t rows = 0;
  int64_t cols = 0;
  CodeElement element = CodeElement::kE2M1;
  CodeScale scale = CodeScale::kNone;
  const uint8_t* scales = nullptr;  // [rows / block_rows, cols / block_cols]
  int64_t block_rows = 1;
  int64_t block_cols = 16;
  CodeOutput output = CodeOutput::kBf16;
  void* out = nullptr;  // [rows, cols]
};
cudaError_t LaunchExpand(const ExpandArgs& args, cudaStream_t stream);

// out[cols, rows] = in[rows, cols]: codes of 8 bits, or of 4 (two per byte, rows and cols even).
cudaError_t LaunchTransposeCodes(const uint8_t* in, int64_t rows, int64_t cols, int bits,
                                 uint8_t* out, cudaStream_t stream);

// FP32 scales per slice, in cuBLASLt's layouts. Without `blocks`: to[slice, line]; with `blocks`,
// for scales of 128 lines: to[line block, slice], rows padded with zeros to a multiple of 4.
struct ArrangeArgs {
  ScaleView from;
  int64_t lines = 0;
  int64_t slices = 0;
  bool blocks = false;
  float* to = nullptr;
};
// Both operands of a GEMM.
cudaError_t LaunchArrange(const ArrangeArgs& a, const ArrangeArgs& b, cudaStream_t stream);

// One-byte block scales to the tiles of scale_tiles.h: the scale of line i and block j along K is
// from[i / line_block · line_stride + j · block_stride].
struct TileScalesArgs {
  const uint8_t* from = nullptr;
  int64_t lines = 0;
  int64_t blocks = 0;
  int64_t line_block = 1;
  int64_t line_stride = 0;
  int64_t block_stride = 1;
  uint8_t* to = nullptr;  // [ScaleTilesBytes(lines, blocks)]
};
cudaError_t LaunchTileScales(const TileScalesArgs& a, const TileScalesArgs& b, cudaStream_t stream);

// A sum over the elements that depends on the bits and the place of each, and the number of
// elements that are not zero.
struct Fingerprint {
  uint64_t sum = 0;
  uint64_t nonzero = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
struct FingerprintArgs {
  const void* x = nullptr;  // [rows, cols] FP32 or BF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  bool bf16 = false;
  Fingerprint* out = nullptr;  // is added to
};
cudaError_t LaunchFingerprint(const FingerprintArgs& args, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GEMM_GEMM_KERNELS_H_

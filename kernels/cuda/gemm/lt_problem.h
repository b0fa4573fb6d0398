// One matmul of cuBLASLt, as far as the choice of its algorithm depends on it: everything but the
// pointers and alpha. The key of the table of algorithms, with a text form for checkpoints.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_LT_PROBLEM_H_
#define NIBBLE_KERNELS_CUDA_GEMM_LT_PROBLEM_H_

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

enum class LtType : uint8_t { kF32, kBf16, kE4M3, kE5M2, kE2M1 };
int LtTypeBits(LtType type);

// The scales that the library applies to an operand inside the matmul, in the layouts of the cuBLAS
// manual ("Narrow Precision Data Types Usage"), with L = K / 128:
enum class LtScale : uint8_t {
  kNone,
  kTensor,  // one FP32
  kLines,   // [lines] FP32
  kSlices,  // [L, lines] FP32
  kBlocks,  // [lines / 128, L rounded up to a multiple of 4] FP32
  kMx,      // E8M0 for 32 elements along K, in tiles (scale_tiles.h)
  kNvfp4,   // E4M3 for 16 elements along K, in tiles
};

// Rows of `stride` elements: [lines, K] if k_major, otherwise [K, lines].
struct LtOperand {
  LtType type = LtType::kBf16;
  bool k_major = true;
  int64_t stride = 0;
  LtScale scale = LtScale::kNone;
  friend auto operator<=>(const LtOperand&, const LtOperand&) = default;
};

// C[m, n] = alpha · Σ_k A(m, k) · B(n, k) (+ C), row-major.
struct LtProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  LtOperand a;
  LtOperand b;
  LtType c = LtType::kF32;
  int64_t c_stride = 0;
  bool accumulate = false;
  bool device_alpha = false;
  // Alignment of all matrices and their rows, in bytes: a power of two up to 16, which is what the
  // fastest algorithms need. More would make the choice depend on where buffers happen to be.
  int alignment = 16;
  friend auto operator<=>(const LtProblem&, const LtProblem&) = default;

  // "16384x6144x2048 a=bf16:k:2048:none b=bf16:k:2048:none c=bf16:6144:set:host align=16".
  std::string Text() const;
};
// The inverse. InvalidArgument naming the part that is wrong.
absl::StatusOr<LtProblem> ParseLtProblem(absl::string_view text);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_LT_PROBLEM_H_

// Which path computes a GEMM on a CUDA card. The choice depends only on formats, compute capability
// and shape, so that `nibble recipe show`, the memory plan made before allocation and the GEMM
// itself agree.
//
// Native paths, by what the tensor cores and cuBLASLt of a compute capability multiply:
//   9.0         FP8 with a scale per tensor, per line, or per 128 elements of K
//   from 10.0   FP8 with a scale per tensor, MXFP8, NVFP4
// FP4 codes are also E4M3 numbers. On 9.0 formats whose FP4 codes have FP32 scales per line or per
// 128 elements are multiplied as FP8 (sums of 128 products of FP4 codes fit the FP8 tensor cores'
// accumulators, unless they reach 4096); on 10.0 MXFP4 is multiplied as MXFP8. Everything else is
// emulated: a BF16 GEMM of codes (times block scales, where that is exact), scales per line in a
// pass over the sums, scales per 128 elements of K in a kernel of our own.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_RECIPE_GEMM_PATH_H_
#define NIBBLE_RECIPE_GEMM_PATH_H_

#include <cstdint>
#include <optional>

#include "recipe/operand_spec.h"

namespace nibble {

enum class GemmPath : uint8_t {
  kFp32,       // an operand is FP32
  kBf16,       // cuBLASLt; scales in alpha
  kBf16Lines,  // cuBLASLt, then line scales in a pass over the sums
  kSliced,     // our kernel: sums per 128 elements of K are scaled and added in ascending order
  kFp8Tensor,
  kFp8Lines,
  kFp8Slices,
  kMx,
  kNvfp4,
};

struct GemmHardware {
  int capability = 90;     // 10 · major + minor
  bool native = true;      // use FP8 and FP4 tensor cores
  bool fp4_in_fp8 = true;  // multiply FP4 codes on FP8 tensor cores, if `native`
};

// The properties of one operand that the choice depends on.
struct PathOperand {
  std::optional<OperandSpec> spec;  // unset: high precision
  bool fp32 = false;                // in high precision; otherwise BF16
  bool codes = true;                // packed
};

struct PathShape {
  int64_t m, n, k;
  bool aligned = true;  // codes and C start and continue on multiples of 16 bytes
};

struct PathChoice {
  GemmPath path;
  const char* reason;
};

// `shape` null: assumes one that suits the tensor cores.
PathChoice ChoosePath(const PathOperand& a, const PathOperand& b, const PathShape* shape,
                      const GemmHardware& hardware);

// "native FP8, a scale per tensor", "emulated BF16", ….
const char* PathName(GemmPath path, const PathOperand& a, const PathOperand& b);

// Whether a path multiplies codes.
bool IsNative(GemmPath path);

// Whether FP32 scales of an operand are applied to sums: per 128 elements of K, or per line.
bool HasSlices(const PathOperand& operand);
bool HasLines(const PathOperand& operand);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_GEMM_PATH_H_

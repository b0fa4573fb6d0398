// One tile's GEMM on the calling thread, by oneDNN: Σ_k A(m, k) · B(n, k) with FP32 accumulation.
// Starts no OpenMP region, whatever the process has configured: threading is up to the caller.
//
// Ownership: borrows operands and results. Thread-safety: Run may be called from several threads,
// each with its own `thread`.
#ifndef NIBBLE_KERNELS_GEMM_TILE_GEMM_H_
#define NIBBLE_KERNELS_GEMM_TILE_GEMM_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

// A GEMM operand as stored: [lines, K] if `lines_first`, otherwise [K, lines]; rows `stride` apart.
struct OperandView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  bool lines_first = true;
  int64_t stride = 0;

  OperandView From(int64_t line, int64_t k) const {
    OperandView view = *this;
    const int64_t elements = lines_first ? line * stride + k : k * stride + line;
    view.data = static_cast<const char*>(data) + elements * DTypeBytes(dtype);
    return view;
  }
};

struct TileTask {
  OperandView a;  // m lines
  OperandView b;  // n lines
  int64_t m, n, k;
  bool accumulate = false;
  void* c = nullptr;  // [m, n], row-major
  DType c_dtype = DType::kF32;
  int64_t c_stride = 0;
};

class TileGemm {
 public:
  virtual ~TileGemm() = default;
  // Whether Run supports this type of C, rounding each element once; FP32 always.
  virtual bool Supports(DType c_dtype, bool accumulate) const = 0;
  // Internal with oneDNN's status if it fails.
  virtual absl::Status Run(const TileTask& task, int thread) = 0;
};

// For FP32 operands.
std::unique_ptr<TileGemm> MakeFp32TileGemm();
// For BF16 operands. FailedPrecondition if oneDNN has no BF16 GEMM for this processor.
absl::StatusOr<std::unique_ptr<TileGemm>> MakeBf16TileGemm(int threads);
// Whether the processor multiplies BF16 natively; otherwise oneDNN's BF16 GEMMs are slower than its
// FP32 ones.
bool HasBf16Instructions();

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_GEMM_TILE_GEMM_H_

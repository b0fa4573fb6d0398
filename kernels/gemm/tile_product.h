// One tile's product on the calling thread, by oneDNN: Σ_k A(m, k) · B(n, k) with FP32
// accumulation. No OpenMP region starts, whatever the process has set: threads are the caller's.
//
// Ownership: borrows operands and results. Thread-safety: Run may be called from several threads,
// each with a `thread` of its own.
#ifndef NIBBLE_KERNELS_GEMM_TILE_PRODUCT_H_
#define NIBBLE_KERNELS_GEMM_TILE_PRODUCT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

// A GEMM operand as stored: [lines, K] where `lines_first`, else [K, lines]; rows `stride` apart.
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

class TileProduct {
 public:
  virtual ~TileProduct() = default;
  // Whether Run takes this kind of C, rounding each of its elements once; FP32 always.
  virtual bool Takes(DType c_dtype, bool accumulate) const = 0;
  // Internal with oneDNN's status where it refuses.
  virtual absl::Status Run(const TileTask& task, int thread) = 0;
};

// FP32 operands.
std::unique_ptr<TileProduct> MakeFp32Product();
// BF16 operands. FailedPrecondition where oneDNN has no BF16 product for this processor.
absl::StatusOr<std::unique_ptr<TileProduct>> MakeBf16Product(int threads);
// Whether the processor multiplies BF16 itself; without, oneDNN's BF16 products are slower than its
// FP32 ones.
bool HasBf16Instructions();

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_GEMM_TILE_PRODUCT_H_

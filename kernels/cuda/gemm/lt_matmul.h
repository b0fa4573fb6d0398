// One matmul of cuBLASLt: its descriptors, made once, and its launch.
//
// cuBLASLt's matrices are column-major, ours row-major: it computes Cᵀ[n, m] = B · Aᵀ, so that our
// operand B is the library's A and the other way round.
//
// Ownership: owns the descriptors; borrows the library and, until the matmul has run, everything
// pointed to. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_LT_MATMUL_H_
#define NIBBLE_KERNELS_CUDA_GEMM_LT_MATMUL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/gemm/cublas_lt.h"
#include "kernels/cuda/gemm/lt_problem.h"

namespace nibble {

// What a launch needs besides the problem; all in device memory but `alpha`.
struct LtPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* a_scales = nullptr;  // unless the operand's scale is kNone
  const void* b_scales = nullptr;
  float alpha = 1.0f;
  const float* device_alpha = nullptr;  // instead of `alpha`, if the problem has device_alpha
};

// Where a matmul runs.
struct LtQueue {
  cublasLtHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  const float* zero_and_one = nullptr;  // [2] in device memory
};

// A descriptor of the library with its destructor.
template <class Pointer>
struct LtDestroy {
  cublasStatus_t (*destroy)(Pointer) = nullptr;
  void operator()(Pointer descriptor) const { destroy(descriptor); }
};
template <class Pointer>
using LtOwned = std::unique_ptr<std::remove_pointer_t<Pointer>, LtDestroy<Pointer>>;

class LtMatmul {
 public:
  static absl::StatusOr<LtMatmul> Create(const CublasLt& library, const LtProblem& problem);

  const LtProblem& problem() const { return problem_; }
  cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  // The library's A, B, and C and D.
  cublasLtMatrixLayout_t layout_a() const { return b_.get(); }
  cublasLtMatrixLayout_t layout_b() const { return a_.get(); }
  cublasLtMatrixLayout_t layout_c() const { return c_.get(); }

  // The pointers to scales are part of the description: the library refuses to choose an algorithm
  // without them. Launch sets them too.
  absl::Status SetScales(const LtPointers& pointers);
  absl::Status Launch(const LtPointers& pointers, const cublasLtMatmulAlgo_t& algorithm,
                      const LtQueue& queue);

 private:
  LtMatmul(const CublasLt& library, const LtProblem& problem)
      : library_(&library), problem_(problem) {}

  template <class T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value,
                   absl::string_view name);

  const CublasLt* library_;
  LtProblem problem_;
  LtOwned<cublasLtMatmulDesc_t> operation_;
  LtOwned<cublasLtMatrixLayout_t> a_, b_, c_;  // our operands
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_LT_MATMUL_H_

// The matmul of operands with FP32 scales per 128 elements of K, following the definition in
// gemm.h: the sum of each slice of 128 is scaled and added in FP32, slices in ascending order. As
// the host launches it; see sliced_kernel.cu.
//
// Ownership: borrows all pointers, which are to device memory. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_SLICED_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_GEMM_SLICED_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm_kernels.h"

namespace nibble::gpu {

// Rows of `stride` elements: [lines, K] if k_major, otherwise [K, lines].
struct SlicedOperand {
  const void* data = nullptr;
  bool f32 = false;  // otherwise BF16
  bool k_major = true;
  int64_t stride = 0;
  ScaleView slices;  // per slice of K
  ScaleView lines;   // applied to the whole sum
};

// C[m, n] = alpha · Σ_s (Σ_{k in slice s} A(m, k) · B(n, k)) · slices (+ C), in C's type; k is a
// multiple of 128.
struct SlicedArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  SlicedOperand a;
  SlicedOperand b;
  void* c = nullptr;
  int64_t c_stride = 0;
  bool c_bf16 = false;
  bool accumulate = false;
  float alpha = 1.0f;
  AlphaPart alpha_a, alpha_b;
};

// Whether the tensor-core kernel supports these operands: BF16, aligned, with lines in multiples of
// 8 where they are contiguous.
bool SlicedTileTakes(const SlicedArgs& args);
cudaError_t LaunchSlicedTile(const SlicedArgs& args, cudaStream_t stream);
// Supports everything; one thread per element of C.
cudaError_t LaunchSlicedNaive(const SlicedArgs& args, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GEMM_SLICED_KERNELS_H_

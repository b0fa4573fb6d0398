// The sigmoid and SiLU of kernels that store BF16, by the approximate instructions for powers of
// two and reciprocals: relative errors of some 2^-21 where |x| is a few units, and 2^-18 at 60.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SILU_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SILU_CUH_

#include <cmath>

#include "kernels/cuda/layers/warp_mma.cuh"

namespace nibble::gpu::silu {

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float Reciprocal(float x) {
#if defined(NIBBLE_GPU_EMULATION)
  return 1.0f / x;
#else
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}
// 1 / (1 + e^−x).
__device__ __forceinline__ float Sigmoid(float x) { return Reciprocal(1.0f + Exp2(x * -kLog2E)); }
__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }
__device__ __forceinline__ float SiluSlope(float x) {
  const float sigmoid = Sigmoid(x);
  return sigmoid * fmaf(x, 1.0f - sigmoid, 1.0f);
}

}  // namespace nibble::gpu::silu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SILU_CUH_

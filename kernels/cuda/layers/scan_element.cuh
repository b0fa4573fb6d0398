// Elements of matrices of either type as FP32.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_ELEMENT_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_ELEMENT_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"

namespace nibble::gpu::scan {

__device__ __forceinline__ float Widen(uint16_t x) { return FromBits<float>(uint32_t{x} << 16); }
__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ void Narrow(uint16_t& to, float x) {
  to = static_cast<uint16_t>(Bf16Pair(x, 0.0f));
}
__device__ __forceinline__ void Narrow(float& to, float x) { to = x; }

// Where the type is known only when the kernel runs.
__device__ __forceinline__ float ElementAt(const void* m, bool f32, int64_t at) {
  return f32 ? __ldg(static_cast<const float*>(m) + at)
             : Widen(__ldg(static_cast<const uint16_t*>(m) + at));
}
__device__ __forceinline__ void SetElementAt(void* m, bool f32, int64_t at, float x) {
  if (f32) {
    static_cast<float*>(m)[at] = x;
  } else {
    Narrow(static_cast<uint16_t*>(m)[at], x);
  }
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_ELEMENT_CUH_

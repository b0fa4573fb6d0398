// The end of every GEMM whose sums are scaled by our own kernels, as gemm.h defines it: alpha, the
// line scales, C, one rounding. Each multiplication and addition rounds by itself, whatever the
// compiler is allowed to fuse.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_SUM_FINISH_CUH_
#define NIBBLE_KERNELS_CUDA_GEMM_SUM_FINISH_CUH_

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::gpu {

#if defined(NIBBLE_GPU_EMULATION)
inline float Times(float a, float b) { return a * b; }
inline float Plus(float a, float b) { return a + b; }
#else
__device__ __forceinline__ float Times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float Plus(float a, float b) { return __fadd_rn(a, b); }
#endif

__device__ __forceinline__ float ScaleAt(const ScaleView& view, int64_t line, int64_t slice) {
  if (view.data == nullptr) return 1.0f;
  return __ldg(view.data + line / view.line_block * view.line_stride + slice * view.slice_stride);
}

__device__ __forceinline__ float Scaled(float sum, float alpha, float row_scale, float col_scale) {
  return Times(Times(Times(sum, alpha), row_scale), col_scale);
}

template <class C>
struct ResultOf;
template <>
struct ResultOf<float> {
  __device__ __forceinline__ static float Read(float c) { return c; }
  __device__ __forceinline__ static float Round(float x) { return x; }
};
template <>
struct ResultOf<uint16_t> {
  __device__ __forceinline__ static float Read(uint16_t c) { return DecodeBf16(c); }
  __device__ __forceinline__ static uint16_t Round(float x) { return EncodeBf16(x); }
};

template <class C>
__device__ __forceinline__ void StoreResult(float scaled, bool accumulate, C* c) {
  *c = ResultOf<C>::Round(accumulate ? Plus(scaled, ResultOf<C>::Read(*c)) : scaled);
}

// Four neighbours of C; kVector: 16 or 8 bytes at once.
template <class C, bool kVector>
struct FourOf {
  __device__ __forceinline__ static void Load(const C* from, int count, C (&four)[4]) {
    if constexpr (kVector && sizeof(C) == 4) {
      const float4 all = *reinterpret_cast<const float4*>(from);
      four[0] = all.x, four[1] = all.y, four[2] = all.z, four[3] = all.w;
    } else if constexpr (kVector) {
      const uint2 all = *reinterpret_cast<const uint2*>(from);
      four[0] = static_cast<C>(all.x), four[1] = static_cast<C>(all.x >> 16);
      four[2] = static_cast<C>(all.y), four[3] = static_cast<C>(all.y >> 16);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = i < count ? from[i] : C{};
    }
  }
  __device__ __forceinline__ static void Store(const C (&four)[4], int count, C* to) {
    if constexpr (kVector && sizeof(C) == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(four[0], four[1], four[2], four[3]);
    } else if constexpr (kVector) {
      *reinterpret_cast<uint2*>(to) =
          make_uint2(static_cast<uint32_t>(four[0]) | (static_cast<uint32_t>(four[1]) << 16),
                     static_cast<uint32_t>(four[2]) | (static_cast<uint32_t>(four[3]) << 16));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) to[i] = four[i];
      }
    }
  }
};

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GEMM_SUM_FINISH_CUH_

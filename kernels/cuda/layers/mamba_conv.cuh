// The convolution of one thread's channels, row by row: the last inputs are in registers.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_CUH_

#include "kernels/cuda/layers/mamba_kernels.h"
#include "kernels/cuda/layers/scan_element.cuh"
#include "kernels/cuda/layers/scan_warp.cuh"

namespace nibble::gpu::conv {

using scan::Exp2;
using scan::Widen;

inline constexpr int kAhead = 8;  // rows loaded together
inline constexpr int kMostTaps = 16;

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
// 1 / (1 + e^−x), within a few units in the last place.
__device__ __forceinline__ float Sigmoid(float x) { return Reciprocal(1.0f + Exp2(x * -kLog2E)); }
__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }
__device__ __forceinline__ float SiluSlope(float x) {
  const float sigmoid = Sigmoid(x);
  return sigmoid * fmaf(x, 1.0f - sigmoid, 1.0f);
}

// kVec neighbouring elements as they are in memory.
template <class T, int kVec>
struct alignas(sizeof(T) * kVec) Raw {
  T x[kVec];
};
template <class T, int kVec>
__device__ __forceinline__ Raw<T, kVec> LoadRaw(const T* from) {
  return *reinterpret_cast<const Raw<T, kVec>*>(from);
}
template <int kVec>
__device__ __forceinline__ void StoreRounded(uint16_t* to, const float (&x)[kVec]) {
  if constexpr (kVec == 1) {
    *to = static_cast<uint16_t>(Bf16Pair(x[0], 0.0f));
  } else {
    struct alignas(2 * kVec) {
      uint32_t word[kVec / 2];
    } packed;
#pragma unroll
    for (int i = 0; i < kVec / 2; ++i) packed.word[i] = Bf16Pair(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<decltype(packed)*>(to) = packed;
  }
}
template <int kVec>
__device__ __forceinline__ void StoreRounded(float* to, const float (&x)[kVec]) {
  Raw<float, kVec> packed;
#pragma unroll
  for (int i = 0; i < kVec; ++i) packed.x[i] = x[i];
  *reinterpret_cast<Raw<float, kVec>*>(to) = packed;
}

// The weights and the bias of a thread's channels. Of kTaps weights the first `skip` do not exist.
template <int kVec, int kTaps>
struct Filter {
  float tap[kTaps][kVec];
  float bias[kVec];

  __device__ __forceinline__ Filter(const ConvArgs& args, int64_t channel, int skip) {
    const float* weight = args.weight + channel * args.width;
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      if constexpr (kVec > 1) {
        const float4 x = *reinterpret_cast<const float4*>(weight + v * 4);
        tap[0][v] = x.x;
        tap[1][v] = x.y;
        tap[2][v] = x.z;
        tap[3][v] = x.w;
      } else {
#pragma unroll
        for (int w = 0; w < kTaps; ++w) tap[w][v] = w < skip ? 0.0f : weight[w - skip];
      }
      bias[v] = args.bias[channel + v];
    }
  }
};

// past: the inputs of the last kTaps rows, oldest first. Advance puts this row at the end; Shift
// moves the rows up for the next one; Forget is for a row where a document begins.
template <class T, int kVec, int kTaps>
__device__ __forceinline__ void Advance(float (&past)[kTaps][kVec], const Raw<T, kVec>& raw) {
#pragma unroll
  for (int v = 0; v < kVec; ++v) past[kTaps - 1][v] = Widen(raw.x[v]);
}
template <int kVec, int kTaps>
__device__ __forceinline__ void Shift(float (&past)[kTaps][kVec]) {
#pragma unroll
  for (int i = 0; i + 1 < kTaps; ++i) {
#pragma unroll
    for (int v = 0; v < kVec; ++v) past[i][v] = past[i + 1][v];
  }
}
template <int kVec, int kTaps>
__device__ __forceinline__ void Forget(float (&past)[kTaps][kVec]) {
#pragma unroll
  for (int i = 0; i + 1 < kTaps; ++i) {
#pragma unroll
    for (int v = 0; v < kVec; ++v) past[i][v] = 0;
  }
}
template <int kVec, int kTaps>
__device__ __forceinline__ float Convolve(const Filter<kVec, kTaps>& filter,
                                          const float (&past)[kTaps][kVec], int v, int skip) {
  float sum = filter.bias[v];
#pragma unroll
  for (int w = 0; w < kTaps; ++w) {
    if (w >= skip) sum = fmaf(filter.tap[w][v], past[w][v], sum);
  }
  return sum;
}

}  // namespace nibble::gpu::conv

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_CUH_

// The convolution of one thread's channels, row by row: the last inputs are in registers.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_MAMBA_CONV_CUH_

#include "kernels/cuda/layers/mamba_kernels.h"
#include "kernels/cuda/layers/scan_element.cuh"
#include "kernels/cuda/layers/silu.cuh"

namespace nibble::gpu::conv {

using scan::Widen;
using silu::Silu;
using silu::SiluSlope;

inline constexpr int kAhead = 8;  // rows loaded together
inline constexpr int kMostTaps = 16;

// kVec neighbouring elements as they are in memory: BF16 in pairs, so that they are loaded as
// words.
template <class T, int kVec>
struct alignas(sizeof(T) * kVec) Raw {
  T x[kVec];
  __device__ __forceinline__ float operator[](int v) const { return Widen(x[v]); }
};
template <int kVec>
requires(kVec > 1) struct alignas(2 * kVec) Raw<uint16_t, kVec> {
  uint32_t pair[kVec / 2];
  __device__ __forceinline__ float operator[](int v) const {
    return FromBits<float>(v % 2 == 0 ? pair[v / 2] << 16 : pair[v / 2] & 0xffff0000u);
  }
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
    Raw<uint16_t, kVec> packed;
#pragma unroll
    for (int i = 0; i < kVec / 2; ++i) packed.pair[i] = Bf16Pair(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<Raw<uint16_t, kVec>*>(to) = packed;
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
  for (int v = 0; v < kVec; ++v) past[kTaps - 1][v] = raw[v];
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

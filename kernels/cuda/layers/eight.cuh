// Eight elements of a row in registers: 16 bytes of BF16 or 32 of FP32 at a time where rows are
// aligned, else one by one.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_EIGHT_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_EIGHT_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"
#include "kernels/tensor/matrix.h"

namespace nibble::gpu {

inline constexpr int kEight = 8;

__device__ __forceinline__ float Widened(float x) { return x; }
__device__ __forceinline__ float Widened(uint16_t code) {
  return FromBits<float>(static_cast<uint32_t>(code) << 16);
}
template <class T>
__device__ __forceinline__ T Narrowed(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    return static_cast<uint16_t>(Bf16Pair(x, 0.0f));
  }
}
// x rounded to T.
template <class T>
__device__ __forceinline__ float Rounded(float x) {
  return Widened(Narrowed<T>(x));
}

// kWide: `from` is a multiple of 16 bytes, and all eight are there; else the first `count` of them,
// and zeros.
template <bool kWide>
__device__ __forceinline__ void LoadEight(const uint16_t* from, int64_t count, float (&x)[kEight]) {
  if constexpr (kWide) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = FromBits<float>(w[i] << 16);
      x[2 * i + 1] = FromBits<float>(w[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = i < count ? Widened(from[i]) : 0.0f;
  }
}
template <bool kWide>
__device__ __forceinline__ void LoadEight(const float* from, int64_t count, float (&x)[kEight]) {
  if constexpr (kWide) {
    const float4 low = reinterpret_cast<const float4*>(from)[0];
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    const float values[kEight] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = values[i];
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = i < count ? from[i] : 0.0f;
  }
}

template <bool kWide>
__device__ __forceinline__ void StoreEight(uint16_t* to, int64_t count, const float (&x)[kEight]) {
  if constexpr (kWide) {
    *reinterpret_cast<uint4*>(to) = make_uint4(Bf16Pair(x[0], x[1]), Bf16Pair(x[2], x[3]),
                                               Bf16Pair(x[4], x[5]), Bf16Pair(x[6], x[7]));
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (i < count) to[i] = Narrowed<uint16_t>(x[i]);
    }
  }
}
template <bool kWide>
__device__ __forceinline__ void StoreEight(float* to, int64_t count, const float (&x)[kEight]) {
  if constexpr (kWide) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (i < count) to[i] = x[i];
    }
  }
}

// Eight elements as they are in memory, to be loaded ahead of their use.
template <class T, bool kWide>
struct RawEight {
  float x[kEight] = {};
  __device__ __forceinline__ void Load(const T* from, int64_t count) {
    LoadEight<kWide>(from, count, x);
  }
  __device__ __forceinline__ void Get(float (&to)[kEight]) const {
#pragma unroll
    for (int i = 0; i < kEight; ++i) to[i] = x[i];
  }
};
template <>
struct RawEight<uint16_t, true> {
  uint4 words = {};
  __device__ __forceinline__ void Load(const uint16_t* from, int64_t) {
    words = *reinterpret_cast<const uint4*>(from);
  }
  __device__ __forceinline__ void Get(float (&to)[kEight]) const {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = FromBits<float>(w[i] << 16);
      to[2 * i + 1] = FromBits<float>(w[i] & 0xffff0000u);
    }
  }
};

template <class T>
__device__ __forceinline__ const T* RowOf(const ConstMatrix& matrix, int64_t row) {
  return static_cast<const T*>(matrix.data) + row * matrix.stride;
}
template <class T>
__device__ __forceinline__ T* RowOf(const MutableMatrix& matrix, int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.stride;
}

// Whether every row of a matrix begins at a multiple of 16 bytes, and is made of whole eights.
// True for a null matrix, which has nothing to align.
template <class Matrix>
bool InEights(const Matrix& matrix) {
  return matrix.data == nullptr ||
         (reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.cols % kEight == 0 &&
          (matrix.rows <= 1 || matrix.stride % kEight == 0));
}
inline bool Aligned(const float* vector) { return reinterpret_cast<uintptr_t>(vector) % 16 == 0; }

// Calls use(std::bool_constant<wide>).
template <class Use>
auto WithBool(bool wide, Use use) {
  return wide ? use(std::true_type()) : use(std::false_type());
}
// Calls use(T()) with the element type.
template <class Use>
auto WithType(DType dtype, Use use) {
  return dtype == DType::kF32 ? use(float()) : use(uint16_t());
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_EIGHT_CUH_

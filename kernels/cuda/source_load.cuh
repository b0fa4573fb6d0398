// Loads of the source matrix, one element or one block at a time, with any alignment.
//
// Thread-safety: reads only.
#ifndef NIBBLE_KERNELS_CUDA_SOURCE_LOAD_CUH_
#define NIBBLE_KERNELS_CUDA_SOURCE_LOAD_CUH_

#include "kernels/cuda/instructions.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::gpu {

// What the source stands for at four pairs, or one element, of its data.
__device__ __forceinline__ uint4 SquaredRelu(const uint4& pairs) {
  return make_uint4(SquaredRelu(pairs.x), SquaredRelu(pairs.y), SquaredRelu(pairs.z),
                    SquaredRelu(pairs.w));
}
__device__ __forceinline__ uint32_t Meaning(const Source& x, uint32_t bf16) {
  return x.squared_relu ? SquaredRelu(bf16) : bf16;
}

template <bool kF32>
__device__ __forceinline__ float LoadElement(const Source& x, int64_t row, int64_t col) {
  const int64_t at = row * x.stride + col;
  if constexpr (kF32) {
    return static_cast<const float*>(x.data)[at];
  } else {
    return FromBits<float>(Meaning(x, static_cast<const uint16_t*>(x.data)[at]) << 16);
  }
}

// Whether 16-byte loads may be used on whole rows of 16-element groups.
inline __host__ __device__ bool IsAligned(const Source& x) {
  const int per_load = x.f32 ? 4 : 8;
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % per_load == 0;
}

// Elements from 16·group on of copy row `line`: part of a row of the source, or of a column.
template <bool kF32, bool kColumn>
__device__ __forceinline__ void LoadBlock(const Source& x, int64_t line, int64_t group,
                                          bool aligned, float (&v)[16]) {
  if constexpr (kColumn) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = LoadElement<kF32>(x, 16 * group + i, line);
  } else if (aligned) {
    const int64_t at = line * x.stride + 16 * group;
    if constexpr (kF32) {
      const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(x.data) + at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = from[i];
        v[4 * i + 0] = four.x;
        v[4 * i + 1] = four.y;
        v[4 * i + 2] = four.z;
        v[4 * i + 3] = four.w;
      }
    } else {
      const uint4* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(x.data) + at);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 eight = x.squared_relu ? SquaredRelu(from[i]) : from[i];
        const uint32_t pair[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          v[8 * i + 2 * k] = FromBits<float>(pair[k] << 16);
          v[8 * i + 2 * k + 1] = FromBits<float>(pair[k] & 0xffff0000u);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = LoadElement<kF32>(x, line, 16 * group + i);
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_SOURCE_LOAD_CUH_

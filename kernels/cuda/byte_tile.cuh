// Common parts of the fast kernels of one-byte elements (E4M3, E5M2): the tile of the source that a
// thread block has in shared memory, its position and loading, and the largest magnitudes of its
// parts.
//
// Bank conflicts: in the row phase 8 threads read 128 neighbouring bytes of a row, in the column
// phase a warp reads neighbouring columns of one row. Staged codes of a column are 16-byte pieces
// in an order that differs from pair of columns to pair of columns.
//
// Ownership: a thread block's shared memory. Thread-safety: as device code; callers place the
// barriers.
#ifndef NIBBLE_KERNELS_CUDA_BYTE_TILE_CUH_
#define NIBBLE_KERNELS_CUDA_BYTE_TILE_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/instructions.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/source_load.cuh"
#include "kernels/formats/bfloat16.h"

namespace nibble::gpu {

inline constexpr uint32_t kByteTile = 128;  // source rows and columns
inline constexpr uint32_t kByteThreads = 256;
inline constexpr uint32_t kByteWarps = kByteThreads / 32;
inline constexpr uint32_t kByteQuarter = kByteTile / 4;  // rows of a thread in the column phase
// Tiles are taken in bands of this many tile rows: neighbours in both directions run together.
inline constexpr uint32_t kByteBand = 8;

template <bool kF32>
struct __align__(16) ByteMemory {
  static constexpr uint32_t kElementBytes = kF32 ? 4 : 2;
  static constexpr uint32_t kRowBytes = kByteTile * kElementBytes;
  unsigned char x[kByteTile * kRowBytes];
  unsigned char codes[kByteTile * kByteTile];  // of a column copy, line by line
  uint32_t column_amax[4][kByteTile];          // of each column's quarters
  uint32_t warp_amax[kByteWarps];
};

// A tile's origin and the part of it inside the source; no rows beyond the source.
struct BytePlace {
  int64_t row;
  int64_t col;
  uint32_t rows;
  uint32_t cols;
};

__device__ __forceinline__ BytePlace BytePlaceOf(const Source& x) {
  const int64_t row = (int64_t{blockIdx.z} * kByteBand + blockIdx.x) * kByteTile;
  const int64_t col = int64_t{blockIdx.y} * kByteTile;
  const auto inside = [](int64_t size) {
    return static_cast<uint32_t>(size < 0 ? 0 : size < kByteTile ? size : kByteTile);
  };
  return {row, col, inside(x.rows - row), inside(x.cols - col)};
}

// Starts the loading of the tile; elements outside the source are zero.
template <bool kF32>
__device__ __forceinline__ void StartByteLoad(const Source& x, const BytePlace& place,
                                              ByteMemory<kF32>& memory) {
  using Memory = ByteMemory<kF32>;
  constexpr uint32_t kPieces = Memory::kRowBytes / 16;
  constexpr uint32_t kStep = kByteThreads / kPieces;
  const uint32_t piece = threadIdx.x % kPieces;
  const uint32_t first = threadIdx.x / kPieces;
  const int64_t row_bytes = x.stride * Memory::kElementBytes;
  uint64_t from = reinterpret_cast<uint64_t>(x.data) + (place.row + first) * row_bytes +
                  place.col * Memory::kElementBytes + 16 * piece;
  const uint32_t to = Kept(SharedAddress(memory.x) + 16 * threadIdx.x);
  const uint32_t rows = 16 * piece < place.cols * Memory::kElementBytes ? place.rows : 0;
#pragma unroll
  for (uint32_t i = 0; i < kByteTile / kStep; ++i) {
    if (first + i * kStep < rows) {
      CopyToShared16(to + i * kByteThreads * 16, from);
    } else {
      *reinterpret_cast<uint4*>(memory.x + 16 * threadIdx.x + i * kByteThreads * 16) =
          make_uint4(0, 0, 0, 0);
    }
    from += kStep * row_bytes;
  }
}

// Replaces what this thread's StartByteLoad() has copied by what the source stands for, zeros too.
// After WaitForCopies(), before the barrier.
template <bool kF32>
__device__ __forceinline__ void ActivateBytes(const Source& x, ByteMemory<kF32>& memory) {
  if constexpr (!kF32) {
    if (!x.squared_relu) return;
#pragma unroll 4
    for (uint32_t i = 0; i < sizeof(memory.x) / 16 / kByteThreads; ++i) {
      uint4& at = reinterpret_cast<uint4*>(memory.x)[threadIdx.x + i * kByteThreads];
      at = SquaredRelu(at);
    }
  }
}

template <bool kF32>
__device__ __forceinline__ float ByteElement(const ByteMemory<kF32>& memory, uint32_t row,
                                             uint32_t col) {
  if constexpr (kF32) {
    return reinterpret_cast<const float*>(memory.x)[row * kByteTile + col];
  } else {
    return DecodeBf16(reinterpret_cast<const uint16_t*>(memory.x)[row * kByteTile + col]);
  }
}

// The value of a BF16 in the low or the high half of a word.
__device__ __forceinline__ float LowBf16(uint32_t pair) { return FromBits<float>(pair << 16); }
__device__ __forceinline__ float HighBf16(uint32_t pair) {
  return FromBits<float>(pair & 0xffff0000u);
}

// The largest magnitude of 16 bytes of the source, as FP32 bits; above infinity for a NaN.
template <bool kF32>
__device__ __forceinline__ uint32_t ChunkAmax(const uint4& in) {
  if constexpr (kF32) {
    float largest = LargerMagnitude(0.0f, FromBits<float>(in.x));
    largest = LargerMagnitude(largest, FromBits<float>(in.y));
    largest = LargerMagnitude(largest, FromBits<float>(in.z));
    return BitsOf<float>(LargerMagnitude(largest, FromBits<float>(in.w)));
  } else {
    const uint32_t pair =
        LargerMagnitudes(LargerMagnitudes(in.x, in.y), LargerMagnitudes(in.z, in.w));
    return MaxBits<uint32_t>((pair << 16) & kMagnitudeBits, pair & 0x7fff0000u);
  }
}

// The largest of `bits` of `lanes` neighbouring threads, a power of two.
__device__ __forceinline__ uint32_t LargestOfLanes(uint32_t bits, int lanes) {
#pragma unroll
  for (int step = 1; step < lanes; step *= 2) {
    bits = MaxBits<uint32_t>(bits, __shfl_xor_sync(0xffffffffu, bits, step));
  }
  return bits;
}

// A warp's largest, where LargestOfWarps finds it after a barrier.
template <bool kF32>
__device__ __forceinline__ void PostWarp(uint32_t bits, ByteMemory<kF32>& memory) {
  const uint32_t largest = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x % 32 == 0) memory.warp_amax[threadIdx.x / 32] = largest;
}
template <bool kF32>
__device__ __forceinline__ uint32_t LargestOfWarps(const ByteMemory<kF32>& memory) {
  uint32_t bits = 0;
#pragma unroll
  for (uint32_t warp = 0; warp < kByteWarps; ++warp) {
    bits = MaxBits<uint32_t>(bits, memory.warp_amax[warp]);
  }
  return bits;
}

// The tile's largest magnitude of this thread's share.
template <bool kF32>
__device__ __forceinline__ uint32_t ShareAmax(const ByteMemory<kF32>& memory) {
  constexpr uint32_t kPieces = sizeof(memory.x) / 16 / kByteThreads;
  uint32_t bits = 0;
#pragma unroll
  for (uint32_t i = 0; i < kPieces; ++i) {
    const uint4 in = reinterpret_cast<const uint4*>(memory.x)[threadIdx.x + i * kByteThreads];
    bits = MaxBits<uint32_t>(bits, ChunkAmax<kF32>(in));
  }
  return bits;
}

// The same from the exact formulas: NaN is skipped, and counted with the infinities.
template <bool kF32>
__device__ __forceinline__ ExactAmax ExactShareAmax(const ByteMemory<kF32>& memory) {
  ExactAmax amax;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < kByteTile * kByteTile; i += kByteThreads) {
    amax.Add(ByteElement<kF32>(memory, i / kByteTile, i % kByteTile));
  }
  return amax;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_BYTE_TILE_CUH_

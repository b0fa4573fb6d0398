// The row phase and the column phase of the fast kernels of one-byte elements: scales, codes and
// emulated operands of a tile of finite numbers.
//
// Thread-safety: as device code; the tile is read only.
#ifndef NIBBLE_KERNELS_CUDA_BYTE_PHASES_CUH_
#define NIBBLE_KERNELS_CUDA_BYTE_PHASES_CUH_

#include "kernels/cuda/byte_launch.h"
#include "kernels/cuda/byte_tile.cuh"
#include "kernels/formats/minifloat.h"
#include "kernels/formats/scaling.h"

namespace nibble::gpu {

// The scale of a block as these kernels use it.
struct ByteScale {
  uint32_t bits;
  float encode;
  float emulate;
  uint32_t mask;  // of codes: none where the scale is 0

  __device__ explicit ByteScale(const BlockScale& scale)
      : bits(scale.bits),
        encode(scale.encode),
        emulate(scale.emulate),
        mask(scale.encode == 0.0f ? 0u : 0xffffffffu) {}
};

template <class E, ByteBlocks kBlocks>
__device__ __forceinline__ ByteScale ByteScaleOf(uint32_t amax_bits) {
  const float amax = FromBits<float>(amax_bits);
  if constexpr (kBlocks == ByteBlocks::kLine32) {
    return ByteScale(MxBlock<E>(amax));
  } else {
    return ByteScale(Fp32Block<E>(amax));
  }
}

template <ByteBlocks kBlocks>
__device__ __forceinline__ void StoreByteScale(const CopyArgs& copy, int64_t index, uint32_t bits) {
  if constexpr (kBlocks == ByteBlocks::kLine32) {
    copy.scales[index] = static_cast<uint8_t>(bits);
  } else {
    reinterpret_cast<uint32_t*>(copy.scales)[index] = bits;
  }
}

// Codes of four values.
template <class E>
__device__ __forceinline__ uint32_t FourBytes(float a, float b, float c, float d,
                                              const ByteScale& scale) {
  const uint32_t low = BytePair<E>(a * scale.encode, b * scale.encode);
  const uint32_t high = BytePair<E>(c * scale.encode, d * scale.encode);
  return Permute(low, high, 0x5410u) & scale.mask;
}

// The emulated operand of two codes in the low half of `codes`.
template <class E>
__device__ __forceinline__ uint32_t EmulatedPair(uint32_t codes, float emulate) {
  float first, second;
  ValuesOfBytes<E>(codes, first, second);
  return Bf16Pair(first * emulate, second * emulate);
}

// 16 bytes of the source, of a row; returns their codes in one word or two.
template <class E, bool kF32>
__device__ __forceinline__ void EncodeChunk(const uint4& in, const ByteScale& scale,
                                            uint32_t (&codes)[2]) {
  if constexpr (kF32) {
    codes[0] = FourBytes<E>(FromBits<float>(in.x), FromBits<float>(in.y), FromBits<float>(in.z),
                            FromBits<float>(in.w), scale);
  } else {
    codes[0] = FourBytes<E>(LowBf16(in.x), HighBf16(in.x), LowBf16(in.y), HighBf16(in.y), scale);
    codes[1] = FourBytes<E>(LowBf16(in.z), HighBf16(in.z), LowBf16(in.w), HighBf16(in.w), scale);
  }
}

// Eight threads share a row and take chunks of 16 bytes of it in turn. `known`: the amax of square
// blocks and tensors. Returns the largest magnitude that this thread saw where it looked.
template <class E, bool kF32, ByteBlocks kBlocks>
__device__ __forceinline__ uint32_t ByteRows(const CopyArgs& copy, const BytePlace& place,
                                             const ByteMemory<kF32>& memory, uint32_t known) {
  constexpr uint32_t kPer = kF32 ? 4 : 8;  // elements of a chunk
  constexpr uint32_t kChunks = 16 / kPer;
  constexpr bool kLines = kBlocks == ByteBlocks::kLine32 || kBlocks == ByteBlocks::kLine128;
  constexpr int kLanesOf32 = 32 / kPer;
  const uint32_t lane = threadIdx.x % 8;
  const bool packed = copy.codes != nullptr;
  const bool emulated = copy.emulated != nullptr;
  ByteScale scale = ByteScaleOf<E, kBlocks>(known);
  uint32_t largest = 0;
#pragma unroll 1
  for (uint32_t row = threadIdx.x / 8; row < kByteTile; row += kByteThreads / 8) {
    uint4 in[kChunks];
    uint32_t amax[kChunks];
    uint32_t of_row = 0;
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      in[i] = reinterpret_cast<const uint4*>(memory.x)[row * (8 * kChunks) + 8 * i + lane];
      if constexpr (kLines) {
        amax[i] = ChunkAmax<kF32>(in[i]);
        of_row = MaxBits<uint32_t>(of_row, amax[i]);
      }
    }
    const int64_t line = place.row + row;
    const bool inside = row < place.rows;
    if constexpr (kLines) largest = MaxBits<uint32_t>(largest, of_row);
    if constexpr (kBlocks == ByteBlocks::kLine128) {
      scale = ByteScaleOf<E, kBlocks>(LargestOfLanes(of_row, 8));
      if (packed && inside && lane == 0) {
        StoreByteScale<kBlocks>(copy, line * copy.scale_stride + place.col / kByteTile, scale.bits);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint32_t col = kPer * (8 * i + lane);
      const bool stores = inside && col < place.cols;
      if constexpr (kBlocks == ByteBlocks::kLine32) {
        scale = ByteScaleOf<E, kBlocks>(LargestOfLanes(amax[i], kLanesOf32));
        if (packed && stores && lane % kLanesOf32 == 0) {
          StoreByteScale<kBlocks>(copy, line * copy.scale_stride + (place.col + col) / 32,
                                  scale.bits);
        }
      }
      uint32_t codes[2];
      EncodeChunk<E, kF32>(in[i], scale, codes);
      if (!stores) continue;
      if (packed) {
        const uint64_t to =
            reinterpret_cast<uint64_t>(copy.codes) + line * copy.code_stride + place.col + col;
        if constexpr (kF32) {
          StoreGlobal4(to, codes[0]);
        } else {
          StoreGlobal8(to, codes[0], codes[1]);
        }
      }
      if (emulated) {
        const uint64_t to = reinterpret_cast<uint64_t>(copy.emulated) +
                            2 * (line * copy.emulated_stride + place.col + col);
        const uint32_t first[2] = {EmulatedPair<E>(codes[0], scale.emulate),
                                   EmulatedPair<E>(codes[0] >> 16, scale.emulate)};
        if constexpr (kF32) {
          StoreGlobal8(to, first[0], first[1]);
        } else {
          StoreGlobal16(to, {first[0], first[1], EmulatedPair<E>(codes[1], scale.emulate),
                             EmulatedPair<E>(codes[1] >> 16, scale.emulate)});
        }
      }
    }
  }
  return largest;
}

// Two neighbouring columns of a row.
template <bool kF32>
__device__ __forceinline__ float2 TwoColumns(const ByteMemory<kF32>& memory, uint32_t row,
                                             uint32_t col) {
  const unsigned char* from =
      memory.x + row * ByteMemory<kF32>::kRowBytes + col * ByteMemory<kF32>::kElementBytes;
  if constexpr (kF32) {
    return *reinterpret_cast<const float2*>(from);
  } else {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
    return make_float2(LowBf16(pair), HighBf16(pair));
  }
}

// Where piece `piece` of a column's codes is staged.
__device__ __forceinline__ uint32_t StagedAt(uint32_t col, uint32_t piece) {
  return col * kByteTile + ((piece ^ (col / 2 % 8)) * 16);
}

// The amax of two columns over a quarter of their rows.
template <bool kF32>
__device__ __forceinline__ uint2 QuarterAmax(const ByteMemory<kF32>& memory, uint32_t row,
                                             uint32_t col) {
  if constexpr (kF32) {
    float largest[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < kByteQuarter; ++i) {
      const float2 two = TwoColumns<kF32>(memory, row + i, col);
      largest[0] = LargerMagnitude(largest[0], two.x);
      largest[1] = LargerMagnitude(largest[1], two.y);
    }
    return make_uint2(BitsOf<float>(largest[0]), BitsOf<float>(largest[1]));
  } else {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < kByteQuarter; ++i) {
      largest = LargerMagnitudes(largest,
                                 *reinterpret_cast<const uint32_t*>(
                                     memory.x + (row + i) * ByteMemory<kF32>::kRowBytes + 2 * col));
    }
    return make_uint2((largest << 16) & kMagnitudeBits, largest & 0x7fff0000u);
  }
}

// A thread takes a quarter of the rows of two neighbouring columns; codes are staged. Called by all
// threads. Returns as ByteRows.
template <class E, bool kF32, ByteBlocks kBlocks>
__device__ __forceinline__ uint32_t ByteColumns(const CopyArgs& copy, const BytePlace& place,
                                                ByteMemory<kF32>& memory, uint32_t known) {
  const uint32_t col = 2 * (threadIdx.x % (kByteTile / 2));
  const uint32_t quarter = threadIdx.x / (kByteTile / 2);
  const uint32_t first = quarter * kByteQuarter;
  const int64_t line = place.col + col;
  const bool packed = copy.codes != nullptr;
  const bool emulated = copy.emulated != nullptr;
  uint32_t largest = 0;
  uint2 amax = make_uint2(known, known);
  if constexpr (kBlocks == ByteBlocks::kLine32 || kBlocks == ByteBlocks::kLine128) {
    amax = QuarterAmax<kF32>(memory, first, col);
    largest = MaxBits<uint32_t>(amax.x, amax.y);
  }
  if constexpr (kBlocks == ByteBlocks::kLine128) {
    *reinterpret_cast<uint2*>(&memory.column_amax[quarter][col]) = amax;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint2 part = *reinterpret_cast<const uint2*>(&memory.column_amax[i][col]);
      amax.x = MaxBits<uint32_t>(amax.x, part.x);
      amax.y = MaxBits<uint32_t>(amax.y, part.y);
    }
  }
  if (col >= place.cols || first >= place.rows) return largest;
  const ByteScale scale[2] = {ByteScaleOf<E, kBlocks>(amax.x), ByteScaleOf<E, kBlocks>(amax.y)};
#pragma unroll
  for (uint32_t k = 0; k < 2 && packed; ++k) {
    const int64_t scales = (line + k) * copy.scale_stride;
    if (kBlocks == ByteBlocks::kLine32) {
      StoreByteScale<kBlocks>(copy, scales + place.row / 32 + quarter, scale[k].bits);
    } else if (kBlocks == ByteBlocks::kLine128 && quarter == 0) {
      StoreByteScale<kBlocks>(copy, scales + place.row / kByteTile, scale[k].bits);
    }
  }
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row = first + 16 * half;
    if (row >= place.rows) break;
    uint32_t codes[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      float2 two[4];
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) two[j] = TwoColumns<kF32>(memory, row + 4 * i + j, col);
      codes[0][i] = FourBytes<E>(two[0].x, two[1].x, two[2].x, two[3].x, scale[0]);
      codes[1][i] = FourBytes<E>(two[0].y, two[1].y, two[2].y, two[3].y, scale[1]);
    }
    if (emulated) {
      uint64_t to = reinterpret_cast<uint64_t>(copy.emulated) +
                    2 * ((place.row + row) * copy.emulated_stride + line);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        float value[2][2];  // [column][row]
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          ValuesOfBytes<E>(codes[k][i / 2] >> (16 * (i % 2)), value[k][0], value[k][1]);
        }
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          StoreGlobal4(to,
                       Bf16Pair(value[0][j] * scale[0].emulate, value[1][j] * scale[1].emulate));
          to += 2 * copy.emulated_stride;
        }
      }
    }
    if (packed) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        *reinterpret_cast<uint4*>(memory.codes + StagedAt(col + k, 2 * quarter + half)) =
            make_uint4(codes[k][0], codes[k][1], codes[k][2], codes[k][3]);
      }
    }
  }
  return largest;
}

// Writes the staged codes, each column's in one run.
template <bool kF32>
__device__ __forceinline__ void StoreStagedBytes(const CopyArgs& copy, const BytePlace& place,
                                                 const ByteMemory<kF32>& memory) {
  constexpr uint32_t kPieces = kByteTile / 16;
  const uint32_t piece = threadIdx.x % kPieces;
  if (16 * piece >= place.rows) return;
#pragma unroll
  for (uint32_t i = 0; i < kByteTile * kPieces / kByteThreads; ++i) {
    const uint32_t col = threadIdx.x / kPieces + i * (kByteThreads / kPieces);
    if (col >= place.cols) continue;
    const uint4 codes = *reinterpret_cast<const uint4*>(memory.codes + StagedAt(col, piece));
    StoreGlobal16(reinterpret_cast<uint64_t>(copy.codes) + (place.col + col) * copy.code_stride +
                      place.row + 16 * piece,
                  {codes.x, codes.y, codes.z, codes.w});
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_BYTE_PHASES_CUH_

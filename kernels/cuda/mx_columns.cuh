// The column phase of the fast MXFP4 kernels, and the writing of the codes that it stages.
//
// Thread-safety: as device code; callers put a barrier between the two.
#ifndef NIBBLE_KERNELS_CUDA_MX_COLUMNS_CUH_
#define NIBBLE_KERNELS_CUDA_MX_COLUMNS_CUH_

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/mx_encode.h"
#include "kernels/cuda/mx_rows.cuh"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/tile_columns.cuh"
#include "kernels/cuda/tile_memory.cuh"
#include "kernels/formats/minifloat.h"

namespace nibble::gpu {

// Rows of the tile at a thread's two columns: a pair of BF16 neighbours.
template <bool kF32>
__device__ __forceinline__ void LoadPairs(const unsigned char* tile, uint32_t (&row)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const unsigned char* from = tile + i * TileShape<kF32>::kRowBytes;
    if constexpr (kF32) {
      const float2 two = *reinterpret_cast<const float2*>(from);
      row[i] = Bf16Pair(two.x, two.y);
    } else {
      row[i] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
}

// The amax of both columns over 32 rows, as FP32 bits; above infinity for a NaN.
template <bool kF32>
__device__ __forceinline__ uint2 PlainColumnsAmax(const unsigned char* tile) {
  constexpr uint32_t kRowBytes = TileShape<kF32>::kRowBytes;
  if constexpr (kF32) {
    float largest[2] = {};
#pragma unroll 8
    for (uint32_t i = 0; i < 32; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(tile + i * kRowBytes);
      largest[0] = LargerMagnitude(largest[0], two.x);
      largest[1] = LargerMagnitude(largest[1], two.y);
    }
    return make_uint2(BitsOf<float>(largest[0]), BitsOf<float>(largest[1]));
  } else {
    uint32_t pair = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < 32; ++i) {
      pair = LargerMagnitudes(pair, *reinterpret_cast<const uint32_t*>(tile + i * kRowBytes));
    }
    return make_uint2((pair << 16) & kMagnitudeBits, pair & 0x7fff0000u);
  }
}

// Column kSecond of the two after the transform of 32 rows.
template <bool kF32, int kSecond>
__device__ __forceinline__ void TransformColumn(const unsigned char* tile,
                                                const uint32_t* sign_bits,
                                                uint32_t (&split)[2][8]) {
  float v[2][16];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t row[16];
    LoadPairs<kF32>(tile + 16 * h * TileShape<kF32>::kRowBytes, row);
    LoadColumn<kSecond>(row, sign_bits + 16 * h, v[h], threadIdx.y);
  }
  Hadamard32(v[0], v[1], split);
}

// Values and signs of 16 rows of column kSecond, without a transform.
template <bool kF32, int kSecond>
__device__ __forceinline__ void TakeHalf(const unsigned char* tile, float (&v)[16],
                                         uint32_t (&signs)[2]) {
  uint32_t unused;
  if constexpr (kF32) {
    float2 row[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      row[i] = *reinterpret_cast<const float2*>(tile + i * TileShape<kF32>::kRowBytes);
    }
    TakeColumnF32<kSecond>(row, v, signs, unused);
  } else {
    uint32_t row[16];
    LoadPairs<kF32>(tile, row);
    TakeColumn<false, kSecond>(row, nullptr, v, signs, unused);
  }
}

// A block of 32 rows of column kSecond: its codes, and its scale, from `known` if there is no
// transform. Returns its amax, and NaN or infinity if it has one.
template <bool kF32, bool kStochastic, bool kHadamard, int kSecond>
__device__ __forceinline__ uint32_t EncodeColumn(const CopyArgs& copy, const unsigned char* tile,
                                                 uint32_t known, const PhiloxStart& start,
                                                 uint32_t random_block, BlockCodes (&codes)[2],
                                                 uint32_t& scale_code) {
  uint32_t split[2][8];
  uint32_t amax_bits = known;
  if constexpr (kHadamard) {
    TransformColumn<kF32, kSecond>(tile, copy.sign_bits, split);
    amax_bits = BitsOf<float>(PairsAmax(split));
  }
  scale_code = E8M0::EncodeRoundedUp<E2M1>(amax_bits);
  const float factor = MxFactorOf(scale_code);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float v[16];
    uint32_t signs[2];
    if constexpr (kHadamard) {
      UnpackSplit(split[h], v);
      signs[0] = SignsOfSplit(split[h][0], split[h][1], split[h][2], split[h][3]);
      signs[1] = SignsOfSplit(split[h][4], split[h][5], split[h][6], split[h][7]);
    } else {
      TakeHalf<kF32, kSecond>(tile + 16 * h * TileShape<kF32>::kRowBytes, v, signs);
    }
    PhiloxWords<uint32_t> random = {};
    if constexpr (kStochastic) random = RoundingBits(start, copy.keys, random_block + h);
    codes[h] = EncodeBlock<kStochastic>(v, factor, false, signs[0], signs[1], random);
  }
  return amax_bits;
}

// A thread keeps its two columns and goes down the tile's blocks; a warp takes 64 columns. Packed
// codes replace what the warp has read of the tile (see tile_memory.cuh). Returns as MxRows.
template <bool kF32, bool kStochastic, bool kHadamard, bool kSquare>
__device__ __forceinline__ uint32_t MxColumns(const CopyArgs& copy, const TilePlace& place,
                                              MxMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kAcross = kTileCols / 2;
  constexpr uint32_t kStep = kTileThreads / kAcross;
  const uint32_t first = threadIdx.x / kAcross;
  // Threads of a warp stay together: those beyond the tile repeat its last columns.
  if (threadIdx.x % kAcross / 32 * 64 >= place.cols) return 0;
  const uint32_t col = MinBits<uint32_t>(2 * (threadIdx.x % kAcross), place.cols - 2);
  const uint32_t line = place.col + col;
  const uint32_t row_blocks = static_cast<uint32_t>(copy.row_blocks);
  const PhiloxStart start = kStochastic ? copy.figures->start : PhiloxStart();
  const uint32_t first_block =
      MultiplyAdd(line, row_blocks, static_cast<uint32_t>(copy.first_block) + place.row / 16);
  const uint64_t scale_to =
      Kept(AddressOf(copy.scales, kSquare ? line / 32 : line, copy.scale_stride, place.row / 32));
  const uint32_t packed = Kept(copy.codes != nullptr ? 1u : 0u);
  const uint32_t emulated = Kept(copy.emulated != nullptr ? 1u : 0u);
  uint32_t largest = 0;
#pragma unroll 1
  for (uint32_t block = first; 32 * block < place.rows; block += kStep) {
    const unsigned char* tile = memory.tile.x + 32 * block * Shape::kRowBytes +
                                SwizzledByte<kF32>(col * Shape::kElementBytes);
    uint2 known = make_uint2(0, 0);
    if constexpr (kSquare) {
      known.x = known.y = MxSquareAmax<kF32>(memory, 32 * block, col);
    } else if constexpr (!kHadamard) {
      known = PlainColumnsAmax<kF32>(tile);
    }
    BlockCodes codes[2][2];  // of a column, then of 16 rows
    uint32_t scale_code[2];
    const uint32_t random_block = first_block + 2 * block;
    const uint32_t amax[2] = {
        EncodeColumn<kF32, kStochastic, kHadamard, 0>(copy, tile, known.x, start, random_block,
                                                      codes[0], scale_code[0]),
        EncodeColumn<kF32, kStochastic, kHadamard, 1>(
            copy, tile, known.y, start, random_block + row_blocks, codes[1], scale_code[1])};
    if constexpr (!kSquare) {
      largest = MaxBits<uint32_t>(largest, MaxBits<uint32_t>(amax[0], amax[1]));
    }
    if (packed != 0) {
      // All of the warp have read what the codes replace.
      __syncwarp();
#pragma unroll 8
      for (uint32_t h = 0; h < 2; ++h) {
        StoreShared16(
            SharedAddress(memory.tile.x) + StagedCodes<kF32>(2 * block + h, col),
            {codes[0][h].word[0], codes[0][h].word[1], codes[1][h].word[0], codes[1][h].word[1]});
      }
      if (!kSquare || col % 32 == 0) StoreGlobal1(scale_to + block, scale_code[0]);
      if (!kSquare) StoreGlobal1(scale_to + copy.scale_stride + block, scale_code[1]);
    }
    if (emulated != 0) {
      const uint32_t row = place.row + 32 * block;
      const int64_t stride = 2 * copy.emulated_stride;
      const EmulationTable table0 = MxEmulationTableFor(scale_code[0]);
      const EmulationTable table1 = MxEmulationTableFor(scale_code[1]);
#pragma unroll 8
      for (uint32_t h = 0; h < 2; ++h) {
        const uint64_t to = copy.emulated_transposed
                                ? AddressOf(copy.emulated, line, stride, 2 * (row + 16 * h))
                                : AddressOf(copy.emulated, row + 16 * h, stride, 2 * line);
        StoreEmulatedColumns(to, static_cast<uint32_t>(stride), copy.emulated_transposed,
                             {codes[0][h], codes[1][h]}, table0, table1);
      }
    }
  }
  return largest;
}

// Writes the staged codes to their destination, 16 bytes at a time: a block of one column.
template <bool kF32>
__device__ __forceinline__ void MxStoreStaged(const CopyArgs& copy, const TilePlace& place,
                                              const MxMemory<kF32>& memory) {
  constexpr uint32_t kBlocks = TileShape<kF32>::kRows / 32;
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < kTileCols * kBlocks; unit += kTileThreads) {
    const uint32_t col = unit / kBlocks;
    const uint32_t block = unit % kBlocks;
    if (col >= place.cols || 32 * block >= place.rows) continue;
    const uint32_t from = SharedAddress(memory.tile.x);
    const uint2 low = LoadSharedCodes8(from + StagedCodes<kF32>(2 * block, col));
    const uint2 high = LoadSharedCodes8(from + StagedCodes<kF32>(2 * block + 1, col));
    StoreGlobal16(
        AddressOf(copy.codes, place.col + col, copy.code_stride, place.row / 2 + 16 * block),
        {low.x, low.y, high.x, high.y});
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_MX_COLUMNS_CUH_

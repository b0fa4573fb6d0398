// The column phase of the tile kernels, and the writing of its results, which it stages in shared
// memory.
//
// Thread-safety: as device code; callers put a barrier between the two.
#ifndef NIBBLE_KERNELS_CUDA_TILE_COLUMNS_CUH_
#define NIBBLE_KERNELS_CUDA_TILE_COLUMNS_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/tile_memory.cuh"
#include "kernels/cuda/tile_rows.cuh"

namespace nibble::gpu {

// Column kSecond of a thread's two, from the tile: values, signs and amax, of a transform without
// its norm.
template <bool kHadamard, int kSecond>
__device__ __forceinline__ void TakeColumn(const uint32_t (&row)[16], const uint32_t* sign_bits,
                                           float (&v)[16], uint32_t (&signs)[2],
                                           uint32_t& amax_bits) {
  uint32_t split[8];
  if constexpr (kHadamard) {
    LoadColumn<kSecond>(row, sign_bits, v, threadIdx.y);  // blocks have one row of threads
    HadamardSums(v, split);
    UnpackSplit(split, v);
  } else {
    constexpr uint32_t kTake = kSecond ? 0x7632u : 0x5410u;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      split[4 * k + 0] = Permute(row[8 * k + 0], row[8 * k + 2], kTake);
      split[4 * k + 1] = Permute(row[8 * k + 4], row[8 * k + 6], kTake);
      split[4 * k + 2] = Permute(row[8 * k + 1], row[8 * k + 3], kTake);
      split[4 * k + 3] = Permute(row[8 * k + 5], row[8 * k + 7], kTake);
    }
    UnpackSplit(split, v);
  }
  amax_bits = BitsOf<float>(PairsAmax(split));
  signs[0] = SignsOfSplit(split[0], split[1], split[2], split[3]);
  signs[1] = SignsOfSplit(split[4], split[5], split[6], split[7]);
}

// The same from FP32 without a transform. `row`: [16] pairs of neighbours.
template <int kSecond>
__device__ __forceinline__ void TakeColumnF32(const float2 (&row)[16], float (&v)[16],
                                              uint32_t (&signs)[2], uint32_t& amax_bits) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    v[i] = kSecond ? row[i].y : row[i].x;
    amax = LargerMagnitude(amax, v[i]);
  }
  amax_bits = BitsOf<float>(amax);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t pair[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      pair[k] =
          Permute(BitsOf<float>(v[8 * h + 2 * k]), BitsOf<float>(v[8 * h + 2 * k + 1]), 0x7632u);
    }
    signs[h] = SignsOfNeighbours(pair[0], pair[1], pair[2], pair[3]);
  }
}

// The emulated operands of two neighbouring columns' blocks. `to`: the address of the first
// column's first element; `stride` in bytes.
__device__ __forceinline__ void StoreEmulatedColumns(uint64_t to, uint32_t stride, bool transposed,
                                                     const BlockCodes (&codes)[2],
                                                     const EmulationTable& table0,
                                                     const EmulationTable& table1) {
  if (transposed) {
    StoreEmulatedRun(to, codes[0], table0);
    StoreEmulatedRun(to + stride, codes[1], table1);
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t first[4];
    uint32_t second[4];
    Emulate(codes[0].word[h], table0, first);
    Emulate(codes[1].word[h], table1, second);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      StoreGlobal4(to, Permute(first[k], second[k], 0x5410u));
      to += stride;
      StoreGlobal4(to, Permute(first[k], second[k], 0x7632u));
      to += stride;
    }
  }
}

// A thread keeps its two columns and goes down the tile's blocks; a warp takes 64 columns. Packed
// codes replace what the warp has read of the tile (see tile_memory.cuh). kPlain: see PlainPhase.
template <bool kF32, bool kStochastic, bool kHadamard, bool kSquare, bool kPlain>
__device__ __forceinline__ bool ColumnPhase(const CopyArgs& copy, const TilePlace& place,
                                            TileMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kAcross = kTileCols / 2;
  constexpr uint32_t kStep = kTileThreads / kAcross;
  static_assert(kAcross % 32 == 0 && kStep == 2);
  Nvfp4::TensorScale tensor = copy.figures->tensor;
  if (kHadamard) tensor = ScaleOfSums(tensor);
  if (kPlain) tensor.divide_first = false;
  const uint32_t first = threadIdx.x / kAcross;
  // Threads of a warp stay together: those beyond the tile repeat its last columns.
  if (threadIdx.x % kAcross / 32 * 64 >= place.cols) return false;
  const uint32_t col = MinBits<uint32_t>(2 * (threadIdx.x % kAcross), place.cols - 2);
  const uint32_t line = place.col + col;
  const unsigned char* tile =
      memory.x + 16 * first * Shape::kRowBytes + SwizzledByte<kF32>(col * Shape::kElementBytes);
  const uint32_t codes_to = Kept(SharedAddress(memory.x) + StagedCodes<kF32>(first, col));
  unsigned char* scales_to = memory.scales + col / 2 * Shape::kScaleStride + 2 * first;
  const uint32_t row_blocks = static_cast<uint32_t>(copy.row_blocks);
  const PhiloxStart start = kStochastic ? copy.figures->start : PhiloxStart();
  uint32_t random_block = MultiplyAdd(
      line, row_blocks, static_cast<uint32_t>(copy.first_block) + place.row / 16 + first);
  const uint32_t factors = Kept(SharedAddress(memory.column_factor));
  const uint32_t rows = Kept(place.rows);
  const uint32_t packed = Kept(kPlain || copy.codes != nullptr ? 1u : 0u);
  const uint32_t emulated = Kept(!kPlain && copy.emulated != nullptr ? 1u : 0u);
  uint32_t largest = 0;
#pragma unroll 1
  for (uint32_t group = first; 16 * group < rows; group += kStep) {
    uint32_t row[16];
    float2 wide[16];
    if constexpr (!kF32) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        row[i] = *reinterpret_cast<const uint32_t*>(tile + i * Shape::kRowBytes);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        wide[i] = *reinterpret_cast<const float2*>(tile + i * Shape::kRowBytes);
        if (kHadamard) row[i] = Bf16Pair(wide[i].x, wide[i].y);
      }
    }
    BlockCodes codes[2];
    uint32_t scale_code[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float v[16];
      uint32_t signs[2];
      uint32_t amax_bits;
      if constexpr (kF32 && !kHadamard) {
        if (k == 0) {
          TakeColumnF32<0>(wide, v, signs, amax_bits);
        } else {
          TakeColumnF32<1>(wide, v, signs, amax_bits);
        }
      } else if (k == 0) {
        TakeColumn<kHadamard, 0>(row, copy.sign_bits, v, signs, amax_bits);
      } else {
        TakeColumn<kHadamard, 1>(row, copy.sign_bits, v, signs, amax_bits);
      }
      largest = MaxBits<uint32_t>(largest, amax_bits);
      if constexpr (kSquare) amax_bits = memory.square_amax[group][col / 16];
      codes[k] =
          EncodeTileBlock<kStochastic>(copy, tensor, factors, v, amax_bits, signs, start,
                                       random_block + (k == 0 ? 0 : row_blocks), scale_code[k]);
    }
    if (kPlain || packed != 0) {
      // All of the warp have read what the codes replace.
      __syncwarp();
      StoreShared16((codes_to + (group - first) * 16 * Shape::kRowBytes) ^
                        (group / 2 * (8 / Shape::kCodePieces) * 16),
                    {codes[0].word[0], codes[0].word[1], codes[1].word[0], codes[1].word[1]});
      *reinterpret_cast<uint16_t*>(scales_to) =
          static_cast<uint16_t>(MultiplyAdd(scale_code[1], 256u, scale_code[0]));
    }
    if (!kPlain && emulated != 0) {
      const uint32_t row0 = place.row + 16 * group;
      const int64_t stride = 2 * copy.emulated_stride;
      const uint64_t to = copy.emulated_transposed
                              ? AddressOf(copy.emulated, line, stride, 2 * row0)
                              : AddressOf(copy.emulated, row0, stride, 2 * line);
      StoreEmulatedColumns(to, static_cast<uint32_t>(stride), copy.emulated_transposed, codes,
                           EmulationTableFor(scale_code[0]), EmulationTableFor(scale_code[1]));
    }
    tile += kStep * 16 * Shape::kRowBytes;
    scales_to += 2 * kStep;
    random_block += kStep;
  }
  return largest >= kInfinityBits;
}

// Writes the staged codes and scales of the column copy to their destination, 8 bytes and 1 byte at
// a time.
template <bool kF32, bool kSquare>
__device__ __forceinline__ void StoreStagedParts(const CopyArgs& copy, const TilePlace& place,
                                                 const TileMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  const uint32_t first_group = place.row / 16;
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < kTileCols * Shape::kGroups; unit += kTileThreads) {
    const uint32_t col = unit / Shape::kGroups;
    const uint32_t group = unit % Shape::kGroups;
    if (col >= place.cols || 16 * group >= place.rows) continue;
    const uint2 codes = LoadSharedCodes8(SharedAddress(memory.x) + StagedCodes<kF32>(group, col));
    StoreGlobal8(
        AddressOf(copy.codes, place.col + col, copy.code_stride, 8 * (first_group + group)),
        codes.x, codes.y);
    // One scale per block, or one per 16 columns.
    if (kSquare && col % 16 != 0) continue;
    const uint32_t line = place.col + col;
    StoreGlobal1(
        AddressOf(copy.scales, kSquare ? line / 16 : line, copy.scale_stride, first_group + group),
        memory.scales[col / 2 * Shape::kScaleStride + 2 * group + col % 2]);
  }
}

// The same, in the widest pieces if the tile is whole and copy rows are aligned.
template <bool kF32, bool kSquare>
__device__ __forceinline__ void StoreStaged(const CopyArgs& copy, const TilePlace& place,
                                            const TileMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kPieces = Shape::kCodePieces;
  constexpr uint32_t kStep = kTileThreads / kPieces;
  static_assert(kTileThreads >= kTileCols / 2 && 64 % kStep == 0);
  const bool whole = place.rows == Shape::kRows && place.cols == kTileCols;
  if (kSquare || !whole || copy.code_stride % 16 != 0 || copy.scale_stride % Shape::kGroups != 0) {
    StoreStagedParts<kF32, kSquare>(copy, place, memory);
    return;
  }
  const uint32_t piece = threadIdx.x % kPieces;
  const uint32_t first = threadIdx.x / kPieces;
  const uint32_t code_stride = static_cast<uint32_t>(copy.code_stride);
  uint64_t codes_to =
      AddressOf(copy.codes, place.col + first, code_stride, place.row / 2 + 16 * piece);
  const uint32_t from = Kept(SharedAddress(memory.x) + StagedCodes<kF32>(2 * piece, first));
#pragma unroll
  for (uint32_t i = 0; i < kTileCols / kStep; ++i) {
    // StagedCodes(2 · piece, first + col) without the part that all have in common.
    const uint32_t col = i * kStep;
    const uint32_t at = from + col % 64 / 16 * Shape::kRowBytes + col / 64 * (Shape::kRowBytes / 2);
    const uint2 low = LoadSharedCodes8(at);
    const uint2 high = LoadSharedCodes8(at + 16 * Shape::kRowBytes);
    StoreGlobal16(codes_to, {low.x, low.y, high.x, high.y});
    codes_to += uint64_t{kStep} * code_stride;
  }
  if (threadIdx.x < kTileCols / 2) {
    const uint32_t* scales =
        reinterpret_cast<const uint32_t*>(memory.scales + threadIdx.x * Shape::kScaleStride);
    const uint32_t line = place.col + 2 * threadIdx.x;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t take = k == 0 ? 0x6420u : 0x7531u;
      const uint64_t to = AddressOf(copy.scales, line + k, copy.scale_stride, place.row / 16);
      const uint32_t low = Permute(scales[0], scales[1], take);
      if constexpr (Shape::kGroups == 8) {
        StoreGlobal8(to, low, Permute(scales[2], scales[3], take));
      } else {
        StoreGlobal4(to, low);
      }
    }
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_TILE_COLUMNS_CUH_

// The row phase of the tile kernels, and the rounding of one block that both phases share.
//
// Thread-safety: as device code; the tile is read only.
#ifndef NIBBLE_KERNELS_CUDA_TILE_ROWS_CUH_
#define NIBBLE_KERNELS_CUDA_TILE_ROWS_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/tile_memory.cuh"

namespace nibble::gpu {

// Rounds one block given what its source type provides cheaply: values, signs, amax as FP32 bits.
template <bool kStochastic>
__device__ __forceinline__ BlockCodes
EncodeTileBlock(const CopyArgs& copy, const Nvfp4::TensorScale& tensor, uint32_t factors,
                const float (&v)[16], uint32_t amax_bits, const uint32_t (&signs)[2],
                const PhiloxStart& start, uint32_t random_block, uint32_t& scale_code) {
  scale_code = ScaleCodeOf(FromBits<float>(amax_bits), tensor);
  PhiloxWords<uint32_t> random = {};
  if constexpr (kStochastic) random = RoundingBits(start, copy.keys, random_block);
  const float factor = LoadShared4(MultiplyAdd(scale_code, 4u, factors));
  return EncodeBlock<kStochastic>(v, factor, scale_code == 0, signs[0], signs[1], random);
}

// 16 neighbours of a row: values, signs and amax. `run`: the address of the first 16 bytes; the
// others are found by exchanging low address bits.
template <bool kF32>
__device__ __forceinline__ uint32_t TakeRun(uint32_t run, float (&v)[16], uint32_t (&signs)[2]) {
  uint32_t pair[8];  // BF16 neighbours, or the upper halves of FP32 ones, for the signs
  uint32_t amax_bits;
  if constexpr (kF32) {
    float amax = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 four = LoadShared16(run ^ (16 * k));
      v[4 * k + 0] = FromBits<float>(four.x);
      v[4 * k + 1] = FromBits<float>(four.y);
      v[4 * k + 2] = FromBits<float>(four.z);
      v[4 * k + 3] = FromBits<float>(four.w);
      pair[2 * k] = Permute(four.x, four.y, 0x7632u);
      pair[2 * k + 1] = Permute(four.z, four.w, 0x7632u);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) amax = LargerMagnitude(amax, v[i]);
    amax_bits = BitsOf<float>(amax);
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 eight = LoadShared16(run ^ (16 * h));
      pair[4 * h + 0] = eight.x;
      pair[4 * h + 1] = eight.y;
      pair[4 * h + 2] = eight.z;
      pair[4 * h + 3] = eight.w;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      v[2 * k] = FromBits<float>(pair[k] << 16);
      v[2 * k + 1] = UpperBf16(pair[k]);
    }
    amax_bits = BitsOf<float>(PairsAmax(pair));
  }
  signs[0] = SignsOfNeighbours(pair[0], pair[1], pair[2], pair[3]);
  signs[1] = SignsOfNeighbours(pair[4], pair[5], pair[6], pair[7]);
  return amax_bits;
}

// A thread keeps its block column of the tile and goes down its rows. kPlain: two rows at once, in
// a loop without tests, for the copies that PlainPhase in tile_kernel.cuh allows; otherwise one row
// at a time of any copy.
template <bool kF32, bool kStochastic, bool kSquare, bool kPlain>
__device__ __forceinline__ bool RowPhase(const CopyArgs& copy, const TilePlace& place,
                                         const TileMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kAcross = kTileCols / 16;
  constexpr uint32_t kStep = kTileThreads / kAcross;
  // The draws of two blocks are independent chains of products: together they wait less.
  constexpr uint32_t kRows = kPlain ? 2 : 1;
  static_assert(!kPlain || kPlainRows % (kRows * kStep) == 0);
  Nvfp4::TensorScale tensor = copy.figures->tensor;
  if (kPlain) tensor.divide_first = false;
  const uint32_t block = threadIdx.x % kAcross;
  const uint32_t rows = Kept(place.rows);
  if (16 * block >= place.cols) return false;
  const uint32_t group = place.col / 16 + block;
  const uint32_t run =
      Kept(SharedAddress(memory.x) + SwizzledByte<kF32>(block * 16 * Shape::kElementBytes));
  const uint32_t factors = Kept(SharedAddress(memory.row_factor));
  // For the tile's first row.
  const uint64_t codes_to = Kept(AddressOf(copy.codes, place.row, copy.code_stride, 8 * group));
  const uint64_t scale_to =
      Kept(AddressOf(copy.scales, kSquare ? place.row / 16 : place.row, copy.scale_stride, group));
  const uint32_t code_stride = static_cast<uint32_t>(copy.code_stride);
  const uint32_t scale_stride = static_cast<uint32_t>(copy.scale_stride);
  const uint32_t first = threadIdx.x / kAcross;
  const uint32_t row_blocks = static_cast<uint32_t>(copy.row_blocks);
  const PhiloxStart start = kStochastic ? copy.figures->start : PhiloxStart();
  uint32_t random_block =
      MultiplyAdd(place.row + first, row_blocks, static_cast<uint32_t>(copy.first_block) + group);
  const uint32_t packed = Kept(kPlain || copy.codes != nullptr ? 1u : 0u);
  const uint32_t emulated = Kept(!kPlain && copy.emulated != nullptr ? 1u : 0u);
  uint32_t largest = 0;
#pragma unroll 1
  for (uint32_t first_row = first; first_row < rows; first_row += kRows * kStep) {
    BlockCodes codes[kRows];
    uint32_t scale_code[kRows];
#pragma unroll
    for (uint32_t k = 0; k < kRows; ++k) {
      const uint32_t row = first_row + k * kStep;
      float v[16];
      uint32_t signs[2];
      uint32_t amax_bits = TakeRun<kF32>(run + row * Shape::kRowBytes, v, signs);
      largest = MaxBits<uint32_t>(largest, amax_bits);
      if constexpr (kSquare) amax_bits = memory.square_amax[row / 16][block];
      codes[k] = EncodeTileBlock<kStochastic>(copy, tensor, factors, v, amax_bits, signs, start,
                                              random_block, scale_code[k]);
      random_block += kStep * row_blocks;
    }
#pragma unroll
    for (uint32_t k = 0; k < kRows; ++k) {
      const uint32_t row = first_row + k * kStep;
      if (kPlain || packed != 0) {
        StoreGlobal8(MultiplyAddWide(row, code_stride, codes_to), codes[k].word[0],
                     codes[k].word[1]);
        StoreGlobal1(MultiplyAddWide(kSquare ? row / 16 : row, scale_stride, scale_to),
                     scale_code[k]);
      }
      if (!kPlain && emulated != 0) {
        StoreEmulatedRun(
            AddressOf(copy.emulated, place.row + row, 2 * copy.emulated_stride, 32 * group),
            codes[k], EmulationTableFor(scale_code[k]));
      }
    }
  }
  return largest >= kInfinityBits;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_TILE_ROWS_CUH_

// The tile of the source that a thread block of the general kernels has in shared memory as FP32:
// its position, its loading, its Hadamard transform of any size, and the amax of its blocks. Blocks
// and transforms of every format fit into a tile, except blocks that are whole lines or the tensor.
//
// A unit of work is a group of 16 elements along a line of the copy, which shares random bits and
// statistics. Elements outside the source are zero: they change no amax and no statistic.
//
// Ownership: a thread block's shared memory. Thread-safety: as device code; callers place the
// barriers.
#ifndef NIBBLE_KERNELS_CUDA_GENERAL_TILE_CUH_
#define NIBBLE_KERNELS_CUDA_GENERAL_TILE_CUH_

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/source_load.cuh"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/hadamard.h"

namespace nibble::gpu {

inline constexpr uint32_t kGeneralTile = 128;  // source rows and columns
inline constexpr uint32_t kGeneralThreads = 256;
inline constexpr uint32_t kGeneralGroups = kGeneralTile / 16;
inline constexpr uint32_t kGeneralUnits = kGeneralTile * kGeneralGroups;
// One word after every 16: threads that own neighbouring groups of four neighbouring rows, or
// neighbouring columns, use different banks.
inline constexpr uint32_t kGeneralPitch = kGeneralTile + kGeneralGroups;

struct __align__(16) GeneralMemory {
  float x[kGeneralTile * kGeneralPitch];
  // Amax of each block, FP32 bits: see BlockOf.
  uint32_t block_amax[kGeneralUnits];
  // Codes of column copies on their way to global memory, by line; 16 bytes away from a power of
  // two.
  uint8_t codes[kGeneralTile * (kGeneralTile + 16)];
};

// A tile's origin and the part of it inside the source.
struct GeneralPlace {
  int64_t row;
  int64_t col;
  uint32_t rows;
  uint32_t cols;
};

inline __host__ __device__ int64_t GeneralTiles(const Source& x) {
  return ((x.rows + kGeneralTile - 1) / kGeneralTile) *
         ((x.cols + kGeneralTile - 1) / kGeneralTile);
}

// Tiles follow each other along the lines of the copy.
template <bool kColumn>
__device__ __forceinline__ GeneralPlace GeneralPlaceOf(const Source& x, int64_t tile) {
  const int64_t down = (x.rows + kGeneralTile - 1) / kGeneralTile;
  const int64_t across = (x.cols + kGeneralTile - 1) / kGeneralTile;
  const int64_t row = (kColumn ? tile % down : tile / across) * kGeneralTile;
  const int64_t col = (kColumn ? tile / down : tile % across) * kGeneralTile;
  const auto inside = [](int64_t size) {
    return static_cast<uint32_t>(size < kGeneralTile ? size : kGeneralTile);
  };
  return {row, col, inside(x.rows - row), inside(x.cols - col)};
}

// The word of element `along` of line `line` of the copy.
template <bool kColumn>
__device__ __forceinline__ uint32_t GeneralAt(uint32_t line, uint32_t along) {
  const uint32_t row = kColumn ? along : line;
  const uint32_t col = kColumn ? line : along;
  return row * kGeneralPitch + col + col / 16;
}

// Line and group of a unit: neighbouring threads have neighbouring groups of a row, or neighbouring
// columns.
template <bool kColumn>
__device__ __forceinline__ uint32_t UnitLine(uint32_t unit) {
  return kColumn ? unit % kGeneralTile : unit / kGeneralGroups;
}
template <bool kColumn>
__device__ __forceinline__ uint32_t UnitGroup(uint32_t unit) {
  return kColumn ? unit / kGeneralTile : unit % kGeneralGroups;
}

template <bool kColumn>
__device__ __forceinline__ void LoadUnit(const GeneralMemory& memory, uint32_t line, uint32_t group,
                                         float (&v)[16]) {
  const uint32_t first = GeneralAt<kColumn>(line, 16 * group);
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) v[i] = memory.x[first + (kColumn ? i * kGeneralPitch : i)];
}

// 16 bytes of a row of the source; elements from `inside` on are zero.
template <bool kF32>
__device__ __forceinline__ uint4 LoadChunk(const Source& x, int64_t row, int64_t col,
                                           uint32_t inside, bool aligned) {
  constexpr uint32_t kPer = kF32 ? 4 : 8;
  const int64_t at = row * x.stride + col;
  uint32_t word[4] = {};
  if constexpr (kF32) {
    const float* from = static_cast<const float*>(x.data) + at;
    if (aligned && inside >= kPer) return __ldg(reinterpret_cast<const uint4*>(from));
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      if (i < inside) word[i] = BitsOf<float>(from[i]);
    }
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(x.data) + at;
    if (aligned && inside >= kPer) return __ldg(reinterpret_cast<const uint4*>(from));
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      if (i < inside) word[i / 2] |= static_cast<uint32_t>(from[i]) << (16 * (i % 2));
    }
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// Loads the tile; for a transform, rounded to BF16 and with the transform's signs. Also clears the
// amax of the blocks.
template <bool kF32, bool kColumn>
__device__ __forceinline__ void LoadGeneralTileOf(const Source& x, const CopyArgs& copy,
                                                  const GeneralPlace& place,
                                                  GeneralMemory& memory) {
  constexpr uint32_t kPer = kF32 ? 4 : 8;
  constexpr uint32_t kChunks = kGeneralTile / kPer;  // per row
  constexpr uint32_t kLoads = 4;                     // in flight
  const bool aligned = IsAligned(x);
#pragma unroll 1
  for (uint32_t first = threadIdx.x; first < kGeneralTile * kChunks;
       first += kLoads * kGeneralThreads) {
    uint4 in[kLoads];
#pragma unroll
    for (uint32_t k = 0; k < kLoads; ++k) {
      const uint32_t row = (first + k * kGeneralThreads) / kChunks;
      const uint32_t col = (first + k * kGeneralThreads) % kChunks * kPer;
      in[k] = make_uint4(0, 0, 0, 0);
      if (row < place.rows && col < place.cols) {
        in[k] = LoadChunk<kF32>(x, place.row + row, place.col + col, place.cols - col, aligned);
        if (!kF32 && x.squared_relu) in[k] = SquaredRelu(in[k]);
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kLoads; ++k) {
      const uint32_t row = (first + k * kGeneralThreads) / kChunks;
      const uint32_t col = (first + k * kGeneralThreads) % kChunks * kPer;
      const uint32_t word[4] = {in[k].x, in[k].y, in[k].z, in[k].w};
      float* to = memory.x + GeneralAt<false>(row, col);
#pragma unroll
      for (uint32_t i = 0; i < kPer; ++i) {
        uint32_t bits = kF32         ? word[i / (kPer / 4)]
                        : i % 2 == 0 ? word[i / (kPer / 4)] << 16
                                     : word[i / (kPer / 4)] & 0xffff0000u;
        if (copy.hadamard_size != 0) {
          const uint32_t along = kColumn ? row : col + i;
          const uint32_t sign = copy.signs.Bit(static_cast<int>(along) & (copy.hadamard_size - 1));
          bits = RoundToBf16Bits<float>(FromBits<float>(bits)) ^ (sign << 31);
        }
        to[i] = FromBits<float>(bits);
      }
    }
  }
  for (uint32_t i = threadIdx.x; i < kGeneralUnits; i += kGeneralThreads) memory.block_amax[i] = 0;
}

// The transform of a tile that was loaded with its signs: the sums of HadamardBf16 in the same
// order, each stage by all threads.
template <bool kColumn>
__device__ __forceinline__ void TransformTile(uint32_t size, GeneralMemory& memory) {
  const float norm = HadamardNorm(static_cast<int>(size));
#pragma unroll 1
  for (uint32_t half = 1; half < size; half *= 2) {
#pragma unroll 4
    for (uint32_t pair = threadIdx.x; pair < kGeneralTile * kGeneralTile / 2;
         pair += kGeneralThreads) {
      const uint32_t line = kColumn ? pair % kGeneralTile : pair / (kGeneralTile / 2);
      const uint32_t in_line = kColumn ? pair / kGeneralTile : pair % (kGeneralTile / 2);
      const uint32_t first = 2 * in_line - (in_line & (half - 1));
      float& a = memory.x[GeneralAt<kColumn>(line, first)];
      float& b = memory.x[GeneralAt<kColumn>(line, first + half)];
      float sum = a + b;
      float difference = a - b;
      if (2 * half == size) {
        sum = FromBits<float>(RoundToBf16Bits<float>(sum * norm));
        difference = FromBits<float>(RoundToBf16Bits<float>(difference * norm));
      }
      a = sum;
      b = difference;
    }
    __syncthreads();
  }
}

// Loads and transforms the tile; all threads see the result.
template <bool kColumn>
__device__ __forceinline__ void TakeTile(const Source& x, const CopyArgs& copy,
                                         const GeneralPlace& place, GeneralMemory& memory) {
  __syncthreads();  // the tile before was read
  if (x.f32) {
    LoadGeneralTileOf<true, kColumn>(x, copy, place, memory);
  } else {
    LoadGeneralTileOf<false, kColumn>(x, copy, place, memory);
  }
  __syncthreads();
  if (copy.hadamard_size != 0) {
    TransformTile<kColumn>(static_cast<uint32_t>(copy.hadamard_size), memory);
  }
}

// Blocks of one source of scales: their size within a tile. Whole lines and tensors are not among
// them.
struct GeneralBlocks {
  uint32_t lines;
  uint32_t groups;

  __device__ explicit GeneralBlocks(const CopyArgs& copy)
      : lines(static_cast<uint32_t>(copy.block_lines)),
        groups(static_cast<uint32_t>(copy.block_length) / 16) {}
  __device__ uint32_t BlockOf(uint32_t line, uint32_t group) const {
    return line / lines * (kGeneralGroups / groups) + group / groups;
  }
  // The bits of a lane's number that do not change its unit's block.
  template <bool kColumn>
  __device__ uint32_t LanesOfBlock() const {
    if (kColumn) return MinBits<uint32_t>(lines, 32) - 1;
    return (groups - 1) | (lines > 1 ? 24u : 0u);
  }
};

// Raises the amax of the unit's block; called by whole warps. Blocks have 1 or at least 16 lines.
template <bool kColumn>
__device__ __forceinline__ void RaiseBlock(const GeneralBlocks& blocks, uint32_t line,
                                           uint32_t group, uint32_t bits, GeneralMemory& memory) {
  const uint32_t lanes = blocks.LanesOfBlock<kColumn>();
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (lanes & step) bits = MaxBits<uint32_t>(bits, __shfl_xor_sync(0xffffffffu, bits, step));
  }
  if ((threadIdx.x & lanes) == 0) atomicMax(&memory.block_amax[blocks.BlockOf(line, group)], bits);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GENERAL_TILE_CUH_

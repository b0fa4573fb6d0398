// The general kernels: every format, block, rounding, Hadamard size, layout and shape that a copy
// can have, from the shared formulas. A thread block takes one tile of 128 rows by 128 columns at a
// time, and a thread the groups of 16 of it. They are the oracle on the card of the faster kernels
// of single formats, and compute all statistics of the formats besides NVFP4.
//
// Included by the .cu files that instantiate it, one per element type, so that they compile in
// parallel.
//
// Thread-safety: as device code; thread blocks share nothing but their inputs and sums of integers.
#ifndef NIBBLE_KERNELS_CUDA_GENERAL_KERNEL_CUH_
#define NIBBLE_KERNELS_CUDA_GENERAL_KERNEL_CUH_

#include "kernels/cuda/block_sums.cuh"
#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/general_launch.h"
#include "kernels/cuda/general_tile.cuh"
#include "kernels/formats/minifloat.h"
#include "kernels/formats/scaling.h"

namespace nibble::gpu {

template <class E>
__device__ __forceinline__ BlockScale ScaleOf(ScaleType type, float amax,
                                              const Nvfp4::TensorScale& tensor) {
  if constexpr (E::kBits == 4) {
    if (type == ScaleType::kE4M3) return Nvfp4Block(amax, tensor);
  }
  return type == ScaleType::kE8M0 ? MxBlock<E>(amax) : Fp32Block<E>(amax);
}

// One unit's results, in element order.
template <class E>
struct UnitCodes {
  static constexpr int kWords = E::kBits / 2;
  uint32_t word[kWords];
  uint32_t emulated[8];  // pairs of BF16
};

// Rounds a unit; adds to the statistics if they are kept. `decode`: from codes to normalised
// values.
template <class E, bool kStatistics>
__device__ __forceinline__ UnitCodes<E> EncodeUnit(const float (&v)[16], const BlockScale& scale,
                                                   bool stochastic,
                                                   const PhiloxWords<uint32_t>& random,
                                                   float decode, float norm, StatSums& sums) {
  UnitCodes<E> out = {};
  float error = 0;
  float square = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t byte = (random.word[i / 4] >> (8 * (i % 4))) & 0xffu;
    typename E::Signed code = {0, 0.0f};
    if (scale.encode != 0.0f) code = E::Round(v[i] * scale.encode, stochastic, byte);
    constexpr int kPerWord = 32 / E::kBits;
    out.word[i / kPerWord] |= code.code << (E::kBits * (i % kPerWord));
    const uint32_t sign = (code.code & E::kSignBit) << (16 - E::kBits);
    const uint32_t bf16 = (RoundToBf16Bits<float>(code.magnitude * scale.emulate) >> 16) | sign;
    out.emulated[i / 2] |= bf16 << (16 * (i % 2));
    if constexpr (kStatistics) {
      const uint32_t bits = BitsOf<float>(v[i]) & kMagnitudeBits;
      if (bits >= kInfinityBits) continue;
      const float a = FromBits<float>(bits) * norm;
      const float d = a - code.magnitude * decode;
      error = error + d * d;
      square = square + a * a;
      if (bits != 0) {
        ++sums.nonzero;
        if (code.magnitude == 0.0f) ++sums.underflow;
      }
      if ((BitsOf<float>(v[i] * scale.encode) & kMagnitudeBits) > E::kMaxBits) ++sums.clipped;
    }
  }
  if constexpr (kStatistics) {
    const SplitSum<float> e = SplitGroupSum<float>(error);
    const SplitSum<float> s = SplitGroupSum<float>(square);
    sums.error_coarse += e.coarse;
    sums.error_fine += e.fine;
    sums.square_coarse += s.coarse;
    sums.square_fine += s.fine;
  }
  return out;
}

// Writes a unit's BF16 operand: `size` elements from `along` on of line `line`.
template <class E, bool kColumn>
__device__ __forceinline__ void StoreEmulatedUnit(const CopyArgs& copy, int64_t line, int64_t along,
                                                  uint32_t size, const UnitCodes<E>& codes) {
  const auto element = [&](int i) {
    return static_cast<uint16_t>(codes.emulated[i / 2] >> (16 * (i % 2)));
  };
  if (kColumn && !copy.emulated_transposed) {
    uint16_t* to = copy.emulated + along * copy.emulated_stride + line;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i < static_cast<int>(size)) to[i * copy.emulated_stride] = element(i);
    }
    return;
  }
  uint16_t* to = copy.emulated + line * copy.emulated_stride + along;
  if (size == 16 && copy.emulated_stride % 8 == 0) {
    const uint32_t(&pair)[8] = codes.emulated;
    StoreGlobal16(reinterpret_cast<uint64_t>(to), {pair[0], pair[1], pair[2], pair[3]});
    StoreGlobal16(reinterpret_cast<uint64_t>(to + 8), {pair[4], pair[5], pair[6], pair[7]});
    return;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (i < static_cast<int>(size)) to[i] = element(i);
  }
}

// Writes the codes of a unit of a row copy. Buffers are 16-byte aligned, and units at multiples of
// their own size.
template <class E>
__device__ __forceinline__ void StoreCodeRun(uint8_t* to, int64_t stride, uint32_t size,
                                             const UnitCodes<E>& codes) {
  constexpr int kBytes = 2 * E::kBits;
  if (size == 16 && stride % kBytes == 0) {
    if constexpr (E::kBits == 4) {
      *reinterpret_cast<uint2*>(to) = make_uint2(codes.word[0], codes.word[1]);
    } else {
      *reinterpret_cast<uint4*>(to) =
          make_uint4(codes.word[0], codes.word[1], codes.word[2], codes.word[3]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kBytes; ++i) {
    if (i < static_cast<int>(size * E::kBits / 8)) {
      to[i] = static_cast<uint8_t>(codes.word[i / 4] >> (8 * (i % 4)));
    }
  }
}

template <class E>
inline constexpr uint32_t kStagePitch = kGeneralTile* E::kBits / 8 + 16;

template <class Piece>
__device__ __forceinline__ void StorePieces(const GeneralMemory& memory, uint32_t pitch,
                                            uint32_t lines, uint32_t line_bytes, uint8_t* to,
                                            int64_t stride) {
  const uint32_t pieces = line_bytes / sizeof(Piece);
  for (uint32_t i = threadIdx.x; i < lines * pieces; i += kGeneralThreads) {
    const uint32_t line = i / pieces;
    const uint32_t piece = i % pieces;
    reinterpret_cast<Piece*>(to + line * stride)[piece] =
        reinterpret_cast<const Piece*>(memory.codes + line * pitch)[piece];
  }
}

// Writes the staged codes of a column copy, each line's in one run.
template <class E>
__device__ __forceinline__ void StoreStagedCodes(const CopyArgs& copy, const GeneralPlace& place,
                                                 const GeneralMemory& memory) {
  const uint32_t bytes = place.rows * E::kBits / 8;
  uint8_t* to = copy.codes + place.col * copy.code_stride + place.row * E::kBits / 8;
  if ((bytes | copy.code_stride) % 16 == 0) {
    StorePieces<uint4>(memory, kStagePitch<E>, place.cols, bytes, to, copy.code_stride);
  } else if ((bytes | copy.code_stride) % 4 == 0) {
    StorePieces<uint32_t>(memory, kStagePitch<E>, place.cols, bytes, to, copy.code_stride);
  } else {
    StorePieces<uint8_t>(memory, kStagePitch<E>, place.cols, bytes, to, copy.code_stride);
  }
}

__device__ __forceinline__ void StoreScale(const CopyArgs& copy, int64_t index, uint32_t bits) {
  if (copy.scale_type == ScaleType::kF32) {
    reinterpret_cast<uint32_t*>(copy.scales)[index] = bits;
  } else {
    copy.scales[index] = static_cast<uint8_t>(bits);
  }
}

// What a thread found in all of its units.
struct GeneralFound {
  uint32_t amax_bits = 0;
  uint32_t non_finite = 0;

  __device__ void Add(const ExactAmax& amax) {
    amax_bits = MaxBits<uint32_t>(amax_bits, amax.bits);
    non_finite += amax.non_finite;
  }
};

// The amax of the tile's groups: of all together and, if scales depend on it, of each block.
template <bool kColumn>
__device__ __forceinline__ void FindBlockAmax(const CopyArgs& copy, bool blocks_from_data,
                                              GeneralMemory& memory, GeneralFound& found) {
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < kGeneralUnits; unit += kGeneralThreads) {
    const uint32_t line = UnitLine<kColumn>(unit);
    const uint32_t group = UnitGroup<kColumn>(unit);
    float v[16];
    LoadUnit<kColumn>(memory, line, group, v);
    ExactAmax amax;
#pragma unroll
    for (int i = 0; i < 16; ++i) amax.Add(v[i]);
    found.Add(amax);
    if (blocks_from_data) {
      RaiseBlock<kColumn>(GeneralBlocks(copy), line, group, amax.bits, memory);
    }
  }
  __syncthreads();
}

template <class E, bool kColumn, bool kStatistics>
__global__ __launch_bounds__(kGeneralThreads,
                             2) void GeneralQuantize(const __grid_constant__ Source x,
                                                     const __grid_constant__ CopyArgs copy) {
  GeneralMemory& memory = *reinterpret_cast<GeneralMemory*>(DynamicShared());
  const Nvfp4::TensorScale tensor = copy.figures->tensor;
  const StatNorm norm = copy.figures->norm;
  const bool blocks_from_data = copy.block_lines != 0 && copy.block_length != 0;
  const int64_t tiles = GeneralTiles(x);
  GeneralFound found;
  StatSums sums;
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const GeneralPlace place = GeneralPlaceOf<kColumn>(x, tile);
    TakeTile<kColumn>(x, copy, place, memory);
    if (blocks_from_data || !copy.amax_pass) {
      FindBlockAmax<kColumn>(copy, blocks_from_data, memory, found);
    }
    const uint32_t lines = kColumn ? place.cols : place.rows;
    const uint32_t length = kColumn ? place.rows : place.cols;
    const int64_t first_line = kColumn ? place.col : place.row;
    const int64_t first_along = kColumn ? place.row : place.col;
#pragma unroll 1
    for (uint32_t unit = threadIdx.x; unit < kGeneralUnits; unit += kGeneralThreads) {
      const uint32_t line = UnitLine<kColumn>(unit);
      const uint32_t group = UnitGroup<kColumn>(unit);
      if (line >= lines || 16 * group >= length) continue;
      const uint32_t size = MinBits<uint32_t>(16, length - 16 * group);
      const int64_t copy_line = first_line + line;
      const int64_t along = first_along + 16 * group;
      float v[16];
      LoadUnit<kColumn>(memory, line, group, v);

      uint32_t amax_bits = BitsOf<float>(tensor.amax);
      int64_t scale_index = 0;
      bool writes_scale = copy_line == 0 && along == 0;
      if (blocks_from_data) {
        const GeneralBlocks blocks(copy);
        amax_bits = memory.block_amax[blocks.BlockOf(line, group)];
        scale_index = copy_line / copy.block_lines * copy.scale_stride + along / copy.block_length;
        writes_scale = line % blocks.lines == 0 && group % blocks.groups == 0;
      } else if (copy.line_amax != nullptr) {
        amax_bits = copy.line_amax[copy_line];
        scale_index = copy_line;
        writes_scale = along == 0;
      }
      const float amax = FromBits<float>(amax_bits);
      const BlockScale scale = ScaleOf<E>(copy.scale_type, amax, tensor);
      if (copy.codes != nullptr && writes_scale) StoreScale(copy, scale_index, scale.bits);
      float decode = 0;
      if constexpr (kStatistics) {
        decode = copy.scale_type == ScaleType::kE4M3
                     ? Nvfp4::DecodeFactor<float>(scale.value, norm.amax)
                     : scale.value * norm.factor;
        const uint64_t bits = BitsOf<float>(scale.value);
        if (amax_bits != 0 && bits != 0) {
          sums.max_scale = sums.max_scale > bits ? sums.max_scale : bits;
          sums.min_scale = sums.min_scale < bits ? sums.min_scale : bits;
        }
      }
      PhiloxWords<uint32_t> random = {};
      if (copy.stochastic) random = RandomBits(copy, copy_line, along / 16);
      const UnitCodes<E> codes =
          EncodeUnit<E, kStatistics>(v, scale, copy.stochastic, random, decode, norm.factor, sums);
      if (copy.codes != nullptr) {
        if constexpr (kColumn) {
          StoreCodeRun<E>(memory.codes + line * kStagePitch<E> + 2 * E::kBits * group, 16, 16,
                          codes);
        } else {
          StoreCodeRun<E>(copy.codes + copy_line * copy.code_stride + along * E::kBits / 8,
                          copy.code_stride, size, codes);
        }
      }
      if (copy.emulated != nullptr) {
        StoreEmulatedUnit<E, kColumn>(copy, copy_line, along, size, codes);
      }
    }
    if (kColumn && copy.codes != nullptr) {
      __syncthreads();
      StoreStagedCodes<E>(copy, place, memory);
    }
  }
  if constexpr (kStatistics) AddAtomically<kGeneralThreads>(copy.head->stats, sums);
  if (copy.amax_pass) return;
  if (found.non_finite != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&copy.head->non_finite),
              static_cast<unsigned long long>(found.non_finite));
  }
  if (copy.find_amax) {
    const uint32_t bits = __reduce_max_sync(0xffffffffu, found.amax_bits);
    if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<uint32_t*>(&copy.head->amax), bits);
  }
}

template <class E>
cudaError_t LaunchGeneralOf(const Source& x, const CopyArgs& copy, bool statistics,
                            cudaStream_t stream) {
  return LaunchGeneralKernel(
      copy.column
          ? (statistics ? GeneralQuantize<E, true, true> : GeneralQuantize<E, true, false>)
          : (statistics ? GeneralQuantize<E, false, true> : GeneralQuantize<E, false, false>),
      x, copy, stream);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GENERAL_KERNEL_CUH_

// Writes of one finished block to a copy's outputs in any layout.
//
// Thread-safety: a block is written by one thread.
#ifndef NIBBLE_KERNELS_CUDA_COPY_STORE_CUH_
#define NIBBLE_KERNELS_CUDA_COPY_STORE_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

// The index of the random bits of block (line, group) of a copy.
__device__ __forceinline__ uint64_t RandomBlock(const CopyArgs& copy, int64_t line, int64_t group) {
  return copy.first_block + static_cast<uint64_t>(line) * copy.row_blocks +
         static_cast<uint64_t>(group);
}

// The stream of a copy at the step that PrepareCopies found.
__device__ __forceinline__ RandomStream StreamAt(const CopyArgs& copy, uint32_t step) {
  return {copy.random.seed, copy.random.stream, step};
}

// The random bits of block (line, group); after the copy was prepared.
__device__ __forceinline__ PhiloxWords<uint32_t> RandomBits(const CopyArgs& copy, int64_t line,
                                                            int64_t group) {
  return RoundingBits(StreamAt(copy, copy.figures->random_step), copy.keys,
                      RandomBlock(copy, line, group));
}

// The emulated operand of a block with contiguous elements: 32 bytes, 32-byte aligned because the
// buffer is and its rows are multiples of 16 elements long. `run`: their address.
__device__ __forceinline__ void StoreEmulatedRun(uint64_t run, const BlockCodes& codes,
                                                 const EmulationTable& table) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t pair[4];
    Emulate(codes.word[h], table, pair);
    StoreGlobal16(run + 16 * h, pair);
  }
}

// Any block of an NVFP4 copy: codes, scale and emulated operand. Every row of a 16×16 block writes
// the block's scale, with the same value.
__device__ __forceinline__ void StoreBlock(const CopyArgs& copy, int64_t line, int64_t group,
                                           const BlockCodes& codes, uint32_t scale_code) {
  if (copy.codes != nullptr) {
    // Copy rows are multiples of 8 bytes long.
    *reinterpret_cast<uint2*>(copy.codes + line * copy.code_stride + 8 * group) =
        make_uint2(codes.word[0], codes.word[1]);
    copy.scales[(copy.square ? line / 16 : line) * copy.scale_stride + group] =
        static_cast<uint8_t>(scale_code);
  }
  if (copy.emulated == nullptr) return;
  const EmulationTable table = EmulationTableFor(scale_code);
  if (!copy.column || copy.emulated_transposed) {
    StoreEmulatedRun(
        reinterpret_cast<uint64_t>(copy.emulated + line * copy.emulated_stride + 16 * group), codes,
        table);
    return;
  }
  uint16_t* to = copy.emulated + 16 * group * copy.emulated_stride + line;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t pair[4];
    Emulate(codes.word[h], table, pair);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      to[(8 * h + 2 * k) * copy.emulated_stride] = static_cast<uint16_t>(pair[k]);
      to[(8 * h + 2 * k + 1) * copy.emulated_stride] = static_cast<uint16_t>(pair[k] >> 16);
    }
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_COPY_STORE_CUH_

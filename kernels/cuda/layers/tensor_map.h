// Tensor maps of token matrices for Hopper's bulk copies, in boxes of 64 columns × 64 tokens,
// 128-byte swizzled as warpgroup matmuls need them (warpgroup_mma.cuh).
//
// Ownership: a map borrows the matrix. Thread-safety: any thread.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_TENSOR_MAP_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::gpu {

inline constexpr int kBoxTokens = 64;
inline constexpr int kBoxColumns = 64;
inline constexpr int kBoxBytes = kBoxTokens * kBoxColumns * 2;

// data: [sequences · length, stride] bf16; the first `columns` are used; coordinates are column,
// token of the sequence, sequence. Tokens beyond the length read as zeros. Rows begin at multiples
// of 16 bytes.
cudaError_t MakeTensorMap(CUtensorMap* map, const uint16_t* data, int64_t columns, int64_t length,
                          int64_t sequences, int64_t stride);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_TENSOR_MAP_H_

// Tiles in shared memory for the attention kernels that use the warp's matrix instructions (every
// target has them): rows of kDim BF16 with 16 bytes of padding, so that the eight rows of a matrix
// lie in different banks.
//
// Thread-safety: device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_MMA_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_MMA_CUH_

#include <cstdint>

#include "kernels/cuda/layers/attention_rows.cuh"
#include "kernels/cuda/layers/warp_mma.cuh"

namespace nibble::gpu {

template <int kDim>
struct MmaTile {
  static constexpr int kPitch = (kDim + 8) * 2;  // bytes
  static constexpr int kSteps = kDim / 16;       // of depth, if kDim is the depth

  static constexpr int Bytes(int rows) { return rows * kPitch; }

  // Starts the copies of rows first … first + kRows - 1; zeros from row `end` on.
  template <int kRows, int kThreads>
  static __device__ __forceinline__ void Load(uint32_t to, const uint16_t* from, int64_t stride,
                                              int64_t first, int64_t end, int thread) {
    constexpr int kPieces = kDim / 8;
    for (int i = thread; i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool present = first + row < end;
      CopyOrZero16(to + static_cast<uint32_t>(row * kPitch + piece * 16),
                   from + (present ? first + row : 0) * stride + piece * 8, present);
    }
  }

  // Fragment a of rows row … row + 15, depth 16 step ….
  static __device__ __forceinline__ void LoadA(uint32_t (&a)[4], uint32_t tile, int row, int step,
                                               int lane) {
    const int r = row + lane % 16, c = step * 16 + lane / 16 * 8;
    LoadMatrices(a, tile + static_cast<uint32_t>(r * kPitch + c * 2));
  }
  // Two fragments b: columns of the result are rows row … row + 15 of the tile; depth 16 step ….
  static __device__ __forceinline__ void LoadB(uint32_t (&b)[4], uint32_t tile, int row, int step,
                                               int lane) {
    const int r = row + lane / 16 * 8 + lane % 8, c = step * 16 + lane / 8 % 2 * 8;
    LoadMatrices(b, tile + static_cast<uint32_t>(r * kPitch + c * 2));
  }
  // Two fragments b: columns of the result are columns 16 c … of the tile; depth is rows
  // row … row + 15.
  static __device__ __forceinline__ void LoadBTransposed(uint32_t (&b)[4], uint32_t tile, int row,
                                                         int c, int lane) {
    const int r = row + lane % 16, column = c * 16 + lane / 16 * 8;
    LoadMatricesTransposed(b, tile + static_cast<uint32_t>(r * kPitch + column * 2));
  }

  // d[16, kColumns] = rows row … of tile `a` times the transpose of rows 0 … kColumns - 1 of `b`.
  template <int kColumns>
  static __device__ __forceinline__ void ScoresOf(float (&d)[kColumns / 2], uint32_t a, int row,
                                                  uint32_t b, int lane) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) d[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t left[4];
      LoadA(left, a, row, step, lane);
#pragma unroll
      for (int column = 0; column < kColumns; column += 16) {
        uint32_t right[4];
        LoadB(right, b, column, step, lane);
        MultiplyTile(d + column / 2, left, right[0], right[1]);
        MultiplyTile(d + column / 2 + 4, left, right[2], right[3]);
      }
    }
  }
  // d[16, kDim] += a[16, kDepth] · rows 0 … kDepth - 1 of tile `b`.
  template <int kDepth>
  static __device__ __forceinline__ void AddProduct(float (&d)[kDim / 2],
                                                    const uint32_t (&a)[kDepth / 4], uint32_t b,
                                                    int lane) {
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += 16) {
      const uint32_t left[4] = {a[depth / 4], a[depth / 4 + 1], a[depth / 4 + 2], a[depth / 4 + 3]};
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        uint32_t right[4];
        LoadBTransposed(right, b, depth, c, lane);
        MultiplyTile(d + 8 * c, left, right[0], right[1]);
        MultiplyTile(d + 8 * c + 4, left, right[2], right[3]);
      }
    }
  }
};

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_MMA_CUH_

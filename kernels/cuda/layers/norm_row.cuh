// What the norms' kernels share: how a row, or a group of its columns, is divided among threads,
// and the choice of a kernel by width and element type.
//
// Thread-safety: as device code; the choice as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_NORM_ROW_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_NORM_ROW_CUH_

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/layers/block_sum.cuh"
#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {

// How many eights of a row a thread keeps, and the most threads of a block.
template <int kChunks>
inline constexpr int kMostThreads = kChunks == 1 ? 512 : 1024;

// A mean that FP32 cannot represent gives NaN, as on the CPU.
__device__ __forceinline__ float ReciprocalDeviation(float sum_of_squares, int64_t n, float eps) {
  const float mean = sum_of_squares / static_cast<float>(n);
  if (!(mean <= FLT_MAX)) return FromBits<float>(0x7fc00000u);
  return 1.0f / sqrtf(mean + eps);
}

// Where a thread's eight number `chunk` begins in a row.
__device__ __forceinline__ int64_t ColumnOf(int chunk) {
  return kEight * (static_cast<int64_t>(chunk) * blockDim.x + threadIdx.x);
}

// Calls use(std::integral_constant<int, chunks>, threads) for a row of `width`.
template <class Use>
cudaError_t WithChunks(int64_t width, Use use) {
  const int64_t eights = (width + kEight - 1) / kEight;
  const auto threads = [&](int chunks) {
    const int64_t each = (eights + chunks - 1) / chunks;
    return static_cast<unsigned>((each + kWarp - 1) / kWarp * kWarp);
  };
  if (eights <= kMostThreads<1>) return use(std::integral_constant<int, 1>(), threads(1));
  if (eights <= 2 * kMostThreads<2>) return use(std::integral_constant<int, 2>(), threads(2));
  if (eights <= 4 * kMostThreads<4>) return use(std::integral_constant<int, 4>(), threads(4));
  return cudaErrorInvalidValue;
}

// Calls use(T(), std::bool_constant<wide>): FP32, which only checks use, is loaded one by one.
template <class Use>
cudaError_t WithElements(DType dtype, bool wide, Use use) {
  if (dtype == DType::kF32) return use(float(), std::false_type());
  return wide ? use(uint16_t(), std::true_type()) : use(uint16_t(), std::false_type());
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_NORM_ROW_CUH_

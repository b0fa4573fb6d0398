// The instructions of one warp that the scan's kernels use beside those of warp_mma.cuh. They exist
// on every target; on the host they run under gpu_emulation.h.
//
// Fragments. Lane l has r = l / 4 and q = l % 4; a word has two BF16, the first in the low half.
//   left [16, 16]:        a0 (r, 2q), a1 (r + 8, 2q), a2 (r, 8 + 2q), a3 (r + 8, 8 + 2q), and the
//                         next column of each
//   right [16, 8]:        b0 (2q, r), b1 (8 + 2q, r), and the next row of each
//   accumulator [16, 8]:  d0 (r, 2q), d1 (r, 2q + 1), d2 (r + 8, 2q), d3 (r + 8, 2q + 1)
// So two neighbouring accumulators, rounded in pairs, are a left fragment.
//
// Thread-safety: as device code. All lanes of a warp call together.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_WARP_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_WARP_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"
#include "kernels/cuda/layers/warp_mma.cuh"

namespace nibble::gpu::scan {

#if defined(NIBBLE_GPU_EMULATION)

inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::MultiplyAdd<double>(d, a, b0, b1);
}
inline uint32_t LoadSharedWord(uint32_t address) { return SharedAt<uint32_t>(address); }
inline int Opaque(int x) { return x; }
template <class T>
T FromLane(T x, unsigned mask) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  bits = emulation::WarpExchange(bits, mask);
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

#else

// d += a · b.
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

// x, opaque to the compiler: values that depend on it are recomputed where they are needed instead
// of being kept in registers throughout a loop.
__device__ __forceinline__ int Opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// The value of lane `lane ^ mask`; lanes may differ in `mask`.
template <class T>
__device__ __forceinline__ T FromLane(T x, unsigned mask) {
  return __shfl_xor_sync(0xffffffffu, x, static_cast<int>(mask));
}

#endif

// The elements of a word.
__device__ __forceinline__ float First(uint32_t pair) { return FromBits<float>(pair << 16); }
__device__ __forceinline__ float Second(uint32_t pair) {
  return FromBits<float>(pair & 0xffff0000u);
}

// The sum over the four lanes of a row of an accumulator, in each of them.
__device__ __forceinline__ float SumOfRow(float x) {
  x += FromLane(x, 1u);
  return x + FromLane(x, 2u);
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_WARP_CUH_

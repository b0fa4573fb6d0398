// Instructions of one warp: matrix multiply-accumulate of 16×8×16 BF16 fragments, loads of
// fragments from shared memory, asynchronous copies, shuffles. They exist on every target;
// warp_emulation.h replaces them on the host.
//
// Fragments, lane l of the warp with row = l / 4 and quad = l % 4, two BF16 in a word:
//   a[4]: (row, 2 quad), (row + 8, 2 quad), (row, 2 quad + 8), (row + 8, 2 quad + 8)  of [16, 16]
//   b[2]: (depth 2 quad, column row), (depth 2 quad + 8, column row)                  of [16, 8]
//   d[4]: (row, 2 quad), (row, 2 quad + 1), (row + 8, 2 quad), (row + 8, 2 quad + 1)  of [16, 8]
// An accumulator of many columns is float d[4 J], where d[4j … 4j + 3] are columns 8j … 8j + 7.
//
// Thread-safety: as device code; all lanes of a warp call together, except for the copies.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_WARP_MMA_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_WARP_MMA_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"

#if defined(NIBBLE_GPU_EMULATION)
#include "kernels/cuda/layers/warp_emulation.h"
#else

namespace nibble::gpu {

// d += a · b.
__device__ __forceinline__ void MultiplyTile(float* d, const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8×8 matrices; lane 8i + r gives the address of row r of matrix i. Word i of lane l is
// elements 2 (l % 4) and the next one of row l / 4 of matrix i, or of column l / 4 if transposed.
__device__ __forceinline__ void LoadMatrices(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
// The inverse of LoadMatrices.
__device__ __forceinline__ void StoreMatrices(uint32_t address, uint32_t word0, uint32_t word1,
                                              uint32_t word2, uint32_t word3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(word0), "r"(word1), "r"(word2), "r"(word3)
               : "memory");
}

// 16 bytes from global to shared memory; zeros unless `present`.
__device__ __forceinline__ void CopyOrZero16(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kLeft` of this thread's groups of copies are unfinished.
template <int kLeft>
__device__ __forceinline__ void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ void StoreShared16(uint32_t address, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void LoadSharedFloats(uint32_t address, float (&x)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ float2 LoadShared8(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void StoreSharedInts(uint32_t address, int4 x) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ int4 LoadSharedInts(uint32_t address) {
  int4 x;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// The value of lane `lane ^ mask`.
__device__ __forceinline__ float FromLane(float x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
__device__ __forceinline__ uint32_t FromLane(uint32_t x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
// The value of lane `lane`.
__device__ __forceinline__ float OfLane(float x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}
__device__ __forceinline__ void SyncWarp() { __syncwarp(); }

// 2^x with a relative error of 2^-22; results below 2^-126 are zero.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_GPU_EMULATION

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_WARP_MMA_CUH_

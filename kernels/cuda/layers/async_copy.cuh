// Hopper's bulk copies (TMA), the barriers in shared memory on which they complete, barriers of
// some of a block's warps, and counters in global memory by which blocks take turns.
// tensor_core_emulation.h replaces them on the host.
//
// A barrier has phases: it counts arrivals and bytes; when both are complete, the next phase
// starts. WaitForPhase(barrier, p) returns once the phase of parity p is over: the first phase has
// parity 0, and waiting for parity 1 on a new barrier returns at once.
//
// Thread-safety: as device code. Single threads call them, unless stated otherwise.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ASYNC_COPY_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_ASYNC_COPY_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/layers/warp_mma.cuh"

#if defined(NIBBLE_GPU_EMULATION)
#include "kernels/cuda/layers/tensor_core_emulation.h"
#endif

#if !defined(NIBBLE_GPU_EMULATION)

namespace nibble::gpu {

// Barriers are 8 bytes in shared memory, given by their address.
__device__ __forceinline__ void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the initialisation, before the block's __syncthreads().
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the phase also wait for `bytes` of copies.
__device__ __forceinline__ void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// The branches are marked uniform, since a barrier gives all threads of a warp the same answer:
// without `.uni` the compiler serialises the warpgroup matmuls that follow.
__device__ __forceinline__ void WaitForPhase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "WAIT:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra.uni DONE;\n\t"
      "bra.uni WAIT;\n\t"
      "DONE:\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies a box of a tensor to shared memory; its bytes count on the barrier. Elements outside the
// tensor are zeros.
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap* map, int column, int row,
                                        int sequence, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(sequence), "r"(barrier)
      : "memory");
}
// Copies contiguous bytes, a multiple of 16, 16-byte aligned; they count on the barrier too.
__device__ __forceinline__ void CopyBytes(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Contiguous FP32 from shared to global memory, stored or added. The calling thread waits for its
// own: until they have read shared memory, or until they are complete.
__device__ __forceinline__ void StoreFloats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void AddFloats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void CommitBulk() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void WaitForBulkReads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void WaitForBulk() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Orders this thread's ordinary accesses to shared memory, or to global memory, relative to those
// of bulk copies and warpgroup matmuls. Two fences, because one for both would wait for global
// memory.
__device__ __forceinline__ void FenceAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void FenceAsyncGlobal() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Barriers 1 … 15 of `threads` threads, whole warps: some wait, others only arrive.
__device__ __forceinline__ void WaitAtBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void ArriveAtBarrier(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A counter in global memory: waits until it is `turn`; then everything that was written before the
// increments is visible. PassTurn makes the thread's earlier writes visible first.
__device__ __forceinline__ void WaitForTurn(const int* counter, int turn) {
  int value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  } while (value != turn);
}
__device__ __forceinline__ void PassTurn(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

}  // namespace nibble::gpu

#endif  // !NIBBLE_GPU_EMULATION

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ASYNC_COPY_CUH_

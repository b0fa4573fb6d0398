// Runs the .cu files on the host, thread by thread, so that everything except the hardware's own
// instructions is tested on a machine without a GPU: indices, staging, synchronisation, launch
// logic. Included before them (-include) with NIBBLE_GPU_EMULATION defined; gpu_emulation.cc
// replaces the CUDA runtime.
//
// Execution model: one thread block at a time; its threads are fibers that switch only at barriers
// and warp operations. Device memory is host memory; streams run at once. Thread-safety: one host
// thread.
#ifndef NIBBLE_KERNELS_CUDA_GPU_EMULATION_H_
#define NIBBLE_KERNELS_CUDA_GPU_EMULATION_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

namespace nibble::gpu::emulation {

// Index of the running fiber.
extern uint3 thread_index;
extern uint3 block_index;
extern dim3 block_size;
extern dim3 grid_size;

// The time that events record. It passes only where a test lets it.
extern double clock_ms;

// Dynamic shared memory of the running block.
unsigned char* Shared();
// Runs all blocks of a kernel's grid.
void RunGrid(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& kernel);

// Waits for all live threads of the block, or of the warp; combines their values.
enum class Combine { kOr, kMax, kMin };
uint32_t BlockCombine(uint32_t value, Combine how);
uint32_t WarpCombine(uint32_t value, Combine how);
uint64_t WarpExchange(uint64_t value, unsigned lane_mask);
// Lets the block's other threads run until `ready()`, which they make true. Stops the program,
// naming `what` is waited for, if none of them can run.
void WaitUntil(const std::function<bool()>& ready, const char* what);

}  // namespace nibble::gpu::emulation

#define threadIdx (::nibble::gpu::emulation::thread_index)
#define blockIdx (::nibble::gpu::emulation::block_index)
#define blockDim (::nibble::gpu::emulation::block_size)
#define gridDim (::nibble::gpu::emulation::grid_size)

inline void __syncthreads() {
  ::nibble::gpu::emulation::BlockCombine(0, ::nibble::gpu::emulation::Combine::kOr);
}
inline int __syncthreads_or(int value) {
  return static_cast<int>(::nibble::gpu::emulation::BlockCombine(
      value != 0 ? 1u : 0u, ::nibble::gpu::emulation::Combine::kOr));
}
inline void __threadfence() {}
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  return ::nibble::gpu::emulation::WarpCombine(value, ::nibble::gpu::emulation::Combine::kMax);
}
inline uint32_t __reduce_min_sync(unsigned, uint32_t value) {
  return ::nibble::gpu::emulation::WarpCombine(value, ::nibble::gpu::emulation::Combine::kMin);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return static_cast<T>(::nibble::gpu::emulation::WarpExchange(value, static_cast<unsigned>(mask)));
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T, class V>
T atomicAdd(T* to, V value) {
  const T old = *to;
  *to += value;
  return old;
}
template <class T, class V>
T atomicMax(T* to, V value) {
  const T old = *to;
  if (value > old) *to = value;
  return old;
}
template <class T, class V>
T atomicMin(T* to, V value) {
  const T old = *to;
  if (value < old) *to = value;
  return old;
}

#endif  // NIBBLE_KERNELS_CUDA_GPU_EMULATION_H_

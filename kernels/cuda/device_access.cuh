// Memory accesses and launches of kernels, in a form that gpu_emulation.h can replace: shared
// memory by 32-bit address and global memory by 64-bit address, as the hot loops use them,
// asynchronous copies, and launches.
//
// Thread-safety: as device code; Launch as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ACCESS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ACCESS_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace nibble::gpu {

#if defined(NIBBLE_GPU_EMULATION)

inline unsigned char* DynamicShared() { return emulation::Shared(); }
inline uint32_t SharedAddress(const void* memory) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(memory) - emulation::Shared());
}
template <class T>
T& SharedAt(uint32_t address) {
  return *reinterpret_cast<T*>(emulation::Shared() + address);
}
inline uint4 LoadShared16(uint32_t address) { return SharedAt<uint4>(address); }
inline uint2 LoadSharedCodes8(uint32_t address) { return SharedAt<uint2>(address); }
inline float LoadShared4(uint32_t address) { return SharedAt<float>(address); }
inline void StoreShared16(uint32_t address, const uint32_t (&word)[4]) {
  SharedAt<uint4>(address) = {word[0], word[1], word[2], word[3]};
}
inline void CopyToShared16(uint32_t to, uint64_t from) {
  SharedAt<uint4>(to) = *reinterpret_cast<const uint4*>(from);
}
inline void WaitForCopies() {}
inline void StoreGlobal1(uint64_t address, uint32_t byte) {
  *reinterpret_cast<uint8_t*>(address) = static_cast<uint8_t>(byte);
}
inline void StoreGlobal4(uint64_t address, uint32_t word) {
  *reinterpret_cast<uint32_t*>(address) = word;
}
inline void StoreGlobal8(uint64_t address, uint32_t low, uint32_t high) {
  *reinterpret_cast<uint2*>(address) = {low, high};
}
inline void StoreGlobal16(uint64_t address, const uint32_t (&word)[4]) {
  *reinterpret_cast<uint4*>(address) = {word[0], word[1], word[2], word[3]};
}

#else

// At a multiple of 1024 bytes, as the swizzled panels of warpgroup matmuls need.
__device__ __forceinline__ unsigned char* DynamicShared() {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  return dynamic;
}
__device__ __forceinline__ uint32_t SharedAddress(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}
__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 result;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "r"(address)
               : "memory");
  return result;
}
__device__ __forceinline__ uint2 LoadSharedCodes8(uint32_t address) {
  uint2 result;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(result.x), "=r"(result.y)
               : "r"(address)
               : "memory");
  return result;
}
__device__ __forceinline__ void StoreShared16(uint32_t address, const uint32_t (&word)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(word[0]),
               "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
}
__device__ __forceinline__ float LoadShared4(uint32_t address) {
  float result;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(result) : "r"(address) : "memory");
  return result;
}
// 16 bytes from global to shared memory, bypassing the registers and the first-level cache.
__device__ __forceinline__ void CopyToShared16(uint32_t to, uint64_t from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Waits for this thread's copies; a barrier makes them visible to other threads.
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void StoreGlobal1(uint64_t address, uint32_t byte) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(byte) : "memory");
}
__device__ __forceinline__ void StoreGlobal4(uint64_t address, uint32_t word) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void StoreGlobal8(uint64_t address, uint32_t low, uint32_t high) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(low), "r"(high) : "memory");
}
__device__ __forceinline__ void StoreGlobal16(uint64_t address, const uint32_t (&word)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(word[0]),
               "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
}

#endif

#if !defined(NIBBLE_GPU_EMULATION)
// More dynamic shared memory than 48 KiB is for kernels that were allowed it. Calls the runtime
// once per kernel, size and device, in each thread that launches it.
inline cudaError_t AllowShared(const void* kernel, size_t bytes) {
  thread_local std::map<std::pair<int, const void*>, size_t> allowed;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  size_t& most = allowed[{device, kernel}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}
#endif

// Enqueues a kernel and returns the status of the launch.
template <class... Params, class... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes,
                   cudaStream_t stream, const Args&... args) {
#if defined(NIBBLE_GPU_EMULATION)
  (void)stream;
  emulation::RunGrid(grid, threads, shared_bytes, [&] { kernel(args...); });
  return cudaGetLastError();
#else
  if (shared_bytes > 0) {
    const cudaError_t error = AllowShared(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args...);
#endif
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ACCESS_CUH_

// A kernel that starts while the one before it in the stream still ends: programmatic dependent
// launch. What it reads before WaitForEarlierKernel the earlier kernel must not write.
//
// Thread-safety: as device code; LaunchEarly as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_EARLY_LAUNCH_CUH_
#define NIBBLE_KERNELS_CUDA_EARLY_LAUNCH_CUH_

#include "kernels/cuda/device_access.cuh"

namespace nibble::gpu {

#if defined(NIBBLE_GPU_EMULATION)

inline void WaitForEarlierKernel() {}
inline void LetNextKernelStart() {}

#else

// Waits until the kernel before has ended and its writes are visible. Without LaunchEarly that is
// so from the start.
__device__ __forceinline__ void WaitForEarlierKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// When all thread blocks have come here or ended, the next kernel may start, if by LaunchEarly.
__device__ __forceinline__ void LetNextKernelStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif

// As Launch, but the kernel may start early.
template <class... Params, class... Args>
cudaError_t LaunchEarly(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes,
                        cudaStream_t stream, const Args&... args) {
#if defined(NIBBLE_GPU_EMULATION)
  return Launch(kernel, grid, threads, shared_bytes, stream, args...);
#else
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
#endif
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_EARLY_LAUNCH_CUH_

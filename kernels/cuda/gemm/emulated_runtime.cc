// The calls of the CUDA runtime that the GEMM engine makes beyond those in gpu_emulation.cc; each
// succeeds at once. Weak, so that an emulation that has them too is used instead.
#include "kernels/cuda/gemm/emulated_runtime.h"

#include <cuda_runtime.h>

#include <cstring>

namespace nibble::gpu::emulation {
bool capturing = false;
}  // namespace nibble::gpu::emulation

extern "C" {
#define NIBBLE_WEAK __attribute__((weak))
NIBBLE_WEAK cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) {
  *device = 0;
  return cudaSuccess;
}
NIBBLE_WEAK cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}
NIBBLE_WEAK cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = nibble::gpu::emulation::capturing ? cudaStreamCaptureStatusActive
                                              : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
NIBBLE_WEAK cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int byte, size_t width,
                                          size_t height, cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    std::memset(static_cast<char*>(to) + row * pitch, byte, width);
  }
  return cudaSuccess;
}
}

// What a kernel found wrong with values that the host cannot see when it enqueues: a token outside
// the vocabulary. A kernel reports by one store to mapped host memory, which costs nothing until it
// happens; the backend looks at it where it waits.
//
// Ownership: the backend owns it. Thread-safety: one of several reports wins.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_FAULT_H_
#define NIBBLE_KERNELS_CUDA_DEVICE_FAULT_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::gpu {

enum class FaultKind : uint32_t { kNone, kEmbeddingKey, kTarget };

// 16 bytes, so that one store writes it.
struct alignas(16) DeviceFault {
  FaultKind kind;
  int32_t row;
  int32_t value;
  int32_t bound;
};

#if defined(__CUDACC__) || defined(NIBBLE_GPU_EMULATION)
__device__ __forceinline__ void Report(DeviceFault* fault, FaultKind kind, int64_t row,
                                       int64_t value, int64_t bound) {
  const int4 words = make_int4(static_cast<int>(kind), static_cast<int>(row),
                               static_cast<int>(value), static_cast<int>(bound));
  *reinterpret_cast<int4*>(fault) = words;
}
#endif

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_FAULT_H_

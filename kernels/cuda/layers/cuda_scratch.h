// Device memory that an operation needs while it runs. It only grows; growing waits for the device
// and loses what was there.
//
// Ownership: the caller owns the buffer. Thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_SCRATCH_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_backend.h"

namespace nibble {

// At least `count` elements.
template <class T>
absl::StatusOr<T*> Scratch(CudaBackend& backend, Buffer& buffer, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  if (buffer.bytes() < bytes) {
    // Enqueued kernels may still use the old memory.
    NIBBLE_RETURN_IF_ERROR(backend.Synchronize());
    buffer = Buffer();
    NIBBLE_ASSIGN_OR_RETURN(buffer, backend.memory().Allocate(bytes));
  }
  return buffer.data<T>();
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_SCRATCH_H_

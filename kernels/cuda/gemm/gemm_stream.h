// The stream that GEMMs are enqueued on, and the device buffers of their conversions.
//
// A CUDA graph keeps the addresses that were captured. So a buffer that a capture has used is never
// freed before the engine, and no buffer grows during a capture.
//
// Ownership: borrows the stream; buffers own their memory. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_GEMM_STREAM_H_
#define NIBBLE_KERNELS_CUDA_GEMM_GEMM_STREAM_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_memory.h"

namespace nibble {

class GemmStream {
 public:
  explicit GemmStream(cudaStream_t stream) : stream_(stream) {}

  cudaStream_t get() const { return stream_; }
  // Reads whether a graph is being captured from the stream. At the beginning of every GEMM.
  absl::Status Begin();
  bool is_captured() const { return captured_; }

 private:
  const cudaStream_t stream_;
  bool captured_ = false;
};

// A device buffer that only grows; its contents are lost when it does, and growing waits for the
// device.
class GrowingBuffer {
 public:
  // ResourceExhausted as CudaMemory; FailedPrecondition if it would have to grow during a capture.
  absl::StatusOr<void*> Reserve(CudaMemory& memory, const GemmStream& stream, int64_t bytes);

 private:
  Buffer buffer_;
  bool in_graph_ = false;        // a capture has used buffer_
  std::vector<Buffer> retired_;  // that captures have used
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_GEMM_STREAM_H_

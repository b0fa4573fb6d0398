// Memory of one CUDA device, and CUDA's errors as statuses.
//
// Ownership: a CudaMemory borrows the stream; its copies wait for the work on it.
// Thread-safety: see Memory; StatusOf is pure.
#ifndef NIBBLE_KERNELS_CUDA_CUDA_MEMORY_H_
#define NIBBLE_KERNELS_CUDA_CUDA_MEMORY_H_

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/memory.h"
#include "kernels/tensor/memory_meter.h"

namespace nibble {

// OK, or Internal with the call's name, CUDA's name of the error and its text; ResourceExhausted if
// memory ran out, NotFound if there is no such device.
absl::Status StatusOf(cudaError_t error, const std::string& call);

class CudaMemory : public Memory {
 public:
  // `most`: bytes that may be in use at once; beyond that, ResourceExhausted. 0: what there is, of
  // `card_bytes`.
  CudaMemory(int device, cudaStream_t stream, size_t most, size_t card_bytes);

  const MemoryMeter& meter() const { return meter_; }
  MemoryUse use() const override;
  // How often memory was freed.
  const std::atomic<uint64_t>& frees() const { return frees_; }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;
  // Not part of Memory: sets every byte, in stream order; for tests that poison outputs.
  absl::Status Fill(void* device, int byte, size_t bytes);

 private:
  void Free(void* data) override;
  absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);

  const int device_;
  const cudaStream_t stream_;
  const size_t card_bytes_;
  MemoryMeter meter_;
  std::atomic<uint64_t> frees_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_CUDA_MEMORY_H_

#include "kernels/cuda/cuda_memory.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

absl::Status StatusOf(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrCat(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return absl::NotFoundError(text);
    default:
      return absl::InternalError(text);
  }
}

CudaMemory::CudaMemory(int device, cudaStream_t stream, size_t most, size_t card_bytes)
    : device_(device),
      stream_(stream),
      card_bytes_(card_bytes),
      meter_(absl::StrCat("CUDA device ", device), most) {}

MemoryUse CudaMemory::use() const {
  MemoryUse use = meter_.use();
  const bool beyond = use.capacity == 0 || use.capacity > card_bytes_;
  if (card_bytes_ != 0 && beyond) use.capacity = card_bytes_;
  return use;
}

absl::StatusOr<Buffer> CudaMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  absl::Status status;
  void* data = nullptr;
  const absl::Status taken = meter_.Take(bytes, data, [&]() -> void* {
    void* allocated = nullptr;
    const cudaError_t error = cudaMalloc(&allocated, bytes);
    if (error == cudaSuccess) return allocated;
    cudaGetLastError();  // clears the error, which the next launch would report
    if (error != cudaErrorMemoryAllocation) status = StatusOf(error, "cudaMalloc");
    return nullptr;
  });
  NIBBLE_RETURN_IF_ERROR(status);
  NIBBLE_RETURN_IF_ERROR(taken);
  return Buffer(this, data, bytes);
}

absl::Status CudaMemory::Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync"));
  return StatusOf(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::Status CudaMemory::CopyIn(void* device, const void* host, size_t bytes) {
  return Copy(device, host, bytes, cudaMemcpyHostToDevice);
}

absl::Status CudaMemory::CopyOut(void* host, const void* device, size_t bytes) {
  return Copy(host, device, bytes, cudaMemcpyDeviceToHost);
}

absl::Status CudaMemory::Fill(void* device, int byte, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  return StatusOf(cudaMemsetAsync(device, byte, bytes, stream_), "cudaMemsetAsync");
}

// cudaFree waits for the device, so that enqueued work on the buffer ends first.
void CudaMemory::Free(void* data) {
  meter_.Release(data);
  cudaSetDevice(device_);
  cudaFree(data);
  ++frees_;
}

}  // namespace nibble

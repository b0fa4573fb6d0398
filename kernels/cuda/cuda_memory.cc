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

absl::StatusOr<Buffer> CudaMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* data = nullptr;
  absl::Status status = StatusOf(cudaSetDevice(device_), "cudaSetDevice");
  if (!status.ok()) return status;
  status = StatusOf(cudaMalloc(&data, bytes),
                    absl::StrCat("cudaMalloc of ", bytes, " bytes on CUDA device ", device_));
  if (!status.ok()) {
    cudaGetLastError();  // clears the error of a failed allocation, which the next launch would
                         // report
    return status;
  }
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
  cudaSetDevice(device_);
  cudaFree(data);
}

}  // namespace nibble

#include "kernels/cuda/gemm/gemm_stream.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

absl::Status GemmStream::Begin() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing"));
  captured_ = status != cudaStreamCaptureStatusNone;
  return absl::OkStatus();
}

absl::StatusOr<void*> GrowingBuffer::Reserve(CudaMemory& memory, const GemmStream& stream,
                                             int64_t bytes) {
  if (buffer_.bytes() < static_cast<size_t>(bytes)) {
    if (stream.is_captured()) {
      return absl::FailedPreconditionError(
          absl::StrCat("a buffer of conversions has ", buffer_.bytes(), " bytes and would grow to ",
                       bytes, " while a graph is captured; Prepare() the GEMM before"));
    }
    if (in_graph_) retired_.push_back(std::move(buffer_));
    in_graph_ = false;
    // Freed first, so that both need not fit.
    { const Buffer freed = std::move(buffer_); }
    NIBBLE_ASSIGN_OR_RETURN(buffer_, memory.Allocate(static_cast<size_t>(bytes)));
  }
  in_graph_ = in_graph_ || stream.is_captured();
  return buffer_.data();
}

}  // namespace nibble

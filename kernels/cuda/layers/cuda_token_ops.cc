#include "kernels/cuda/layers/cuda_token_ops.h"

#include "common/status_macros.h"
#include "kernels/cuda/layers/cuda_scratch.h"
#include "kernels/cuda/layers/token_kernels.h"

namespace nibble {

absl::StatusOr<const int32_t*> CudaTokenOps::Positions(const SequenceLayout& layout) {
  NIBBLE_ASSIGN_OR_RETURN(int32_t* const positions,
                          Scratch<int32_t>(backend_, positions_, layout.tokens()));
  for (const Continuation& piece : layout.continued) {
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchPositions(piece.row, piece.rows, piece.rows, piece.position,
                                      /*doc_begin=*/nullptr, positions, backend_.stream()),
                 "launch of the positions kernel"));
  }
  if (layout.continued.empty()) {
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchPositions(0, layout.tokens(), layout.length, /*base=*/0,
                                      layout.doc_begin, positions, backend_.stream()),
                 "launch of the positions kernel"));
  }
  return positions;
}

absl::Status CudaTokenOps::Forward(const EmbeddingForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const int32_t* positions = nullptr;
  if (request.positions.data != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(positions, Positions(request.layout));
  }
  return StatusOf(gpu::LaunchEmbedding(request, positions, backend_.fault(), backend_.stream()),
                  "launch of the embedding kernel");
}

absl::Status CudaTokenOps::AddByKey(const ConstMatrix& from, const int32_t* keys, int64_t bound,
                                    float* table) {
  gpu::KeyScratch scratch;
  NIBBLE_ASSIGN_OR_RETURN(scratch.sorted,
                          Scratch<uint64_t>(backend_, sorted_, gpu::SortedKeys(from.rows)));
  NIBBLE_ASSIGN_OR_RETURN(
      scratch.partial, Scratch<float>(backend_, partial_, gpu::PartialRows(from.rows) * from.cols));
  return StatusOf(
      gpu::LaunchAddByKey(from, keys, bound, table, scratch, backend_.fault(), backend_.stream()),
      "launch of the embedding's backward kernels");
}

absl::Status CudaTokenOps::Backward(const EmbeddingBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(AddByKey(request.dout, request.tokens, request.vocab, request.dtable));
  if (request.dpositions == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const int32_t* const positions, Positions(request.layout));
  return AddByKey(request.dout, positions, request.max_positions, request.dpositions);
}

size_t CudaTokenOps::ScratchBytes(const EmbeddingBackward& request) const {
  const ConstMatrix& dout = request.dout;
  size_t bytes = static_cast<size_t>(gpu::SortedKeys(dout.rows)) * sizeof(uint64_t) +
                 static_cast<size_t>(gpu::PartialRows(dout.rows) * dout.cols) * sizeof(float);
  if (request.dpositions != nullptr) {
    bytes += static_cast<size_t>(request.layout.tokens()) * sizeof(int32_t);
  }
  return bytes;
}

absl::Status CudaTokenOps::Run(const CrossEntropy& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchCrossEntropy(request, backend_.fault(), backend_.stream()),
                  "launch of the cross entropy kernel");
}

}  // namespace nibble

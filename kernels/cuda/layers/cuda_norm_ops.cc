#include "kernels/cuda/layers/cuda_norm_ops.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/layers/column_sum_kernels.h"
#include "kernels/cuda/layers/cuda_scratch.h"
#include "kernels/cuda/layers/norm_kernels.h"

namespace nibble {
namespace {

absl::Status CheckWidth(int64_t width) {
  if (width <= gpu::kWidestNorm) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("norm over ", width, " columns: CUDA kernels take ",
                                               gpu::kWidestNorm, " at most"));
}

// A partial sum of a gradient: [blocks of rows, d].
int64_t PartialSums(const ConstMatrix& x) { return gpu::RowBlocksOf(x.rows, x.cols) * x.cols; }

}  // namespace

size_t CudaNormOps::ScratchBytes(const NormBackward& request) const {
  return 2 * static_cast<size_t>(PartialSums(request.x)) * sizeof(float);
}

size_t CudaNormOps::ScratchBytes(const GatedNormBackward& request) const {
  return static_cast<size_t>(PartialSums(request.y)) * sizeof(float);
}

absl::Status CudaNormOps::Forward(const AddNormForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(CheckWidth(request.x.cols));
  if (request.amax != nullptr) {
    NIBBLE_RETURN_IF_ERROR(backend_.memory().Fill(request.amax, 0, sizeof(float)));
  }
  return StatusOf(gpu::LaunchAddNorm(request, backend_.stream()), "launch of the norm kernel");
}

absl::Status CudaNormOps::Backward(const NormBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const int64_t d = request.x.cols;
  NIBBLE_RETURN_IF_ERROR(CheckWidth(d));
  const int64_t blocks = gpu::RowBlocksOf(request.x.rows, d);
  NIBBLE_ASSIGN_OR_RETURN(float* const dweights,
                          Scratch<float>(backend_, partial_, 2 * PartialSums(request.x)));
  float* const dbiases = dweights + blocks * d;
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(gpu::LaunchNormBackward(request, dweights, dbiases, backend_.stream()),
               "launch of the norm's backward kernel"));
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(gpu::LaunchAddColumnSums(dweights, blocks, d, request.dweight, backend_.stream()),
               "launch of the column sum kernel"));
  if (!request.norm.centered) return absl::OkStatus();
  return StatusOf(gpu::LaunchAddColumnSums(dbiases, blocks, d, request.dbias, backend_.stream()),
                  "launch of the column sum kernel");
}

absl::Status CudaNormOps::Forward(const GatedNormForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(CheckWidth(request.y.cols / request.groups));
  if (request.amax != nullptr) {
    NIBBLE_RETURN_IF_ERROR(backend_.memory().Fill(request.amax, 0, sizeof(float)));
  }
  return StatusOf(gpu::LaunchGatedNorm(request, backend_.stream()),
                  "launch of the gated norm kernel");
}

absl::Status CudaNormOps::Backward(const GatedNormBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const int64_t d = request.y.cols;
  NIBBLE_RETURN_IF_ERROR(CheckWidth(d / request.groups));
  const int64_t blocks = gpu::RowBlocksOf(request.y.rows, d);
  NIBBLE_ASSIGN_OR_RETURN(float* const dweights,
                          Scratch<float>(backend_, partial_, PartialSums(request.y)));
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(gpu::LaunchGatedNormBackward(request, dweights, backend_.stream()),
               "launch of the gated norm's backward kernel"));
  return StatusOf(gpu::LaunchAddColumnSums(dweights, blocks, d, request.dweight, backend_.stream()),
                  "launch of the column sum kernel");
}

}  // namespace nibble

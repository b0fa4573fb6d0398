#include "kernels/cpu/layers/cpu_optimizer_ops.h"

#include <cmath>

#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"

namespace nibble {
namespace {

using cpu::Blocks;

constexpr int64_t kSumBlock = 65536;
constexpr int64_t kUpdateBlock = 16384;

}  // namespace

CpuOptimizerOps::CpuOptimizerOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool), kernels_(cpu::TableFor<cpu::OptimizerKernels>(isa)) {}

absl::Status CpuOptimizerOps::Run(const SumOfSquares& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const Blocks blocks{request.n, kSumBlock};
  double* partial = partial_.Get(blocks.count());
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    partial[i] =
        kernels_.sum_of_squares(request.x + blocks.begin(i), blocks.end(i) - blocks.begin(i));
  });
  double sum = 0;
  for (int64_t i = 0; i < blocks.count(); ++i) sum += partial[i];
  *request.sum = sum;
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::Run(const ClipScale& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const double norm = std::sqrt(*request.sum);
  *request.norm = static_cast<float>(norm);
  *request.scale = 1;
  // If the norm is NaN so is the scale, so that it reaches every parameter.
  if (request.max_norm > 0 && !(norm <= request.max_norm)) {
    *request.scale = static_cast<float>(request.max_norm / norm);
  }
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::Run(const AdamW& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const float scale = request.scale == nullptr ? 1.0f : *request.scale;
  const Blocks blocks{request.n, kUpdateBlock};
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    kernels_.adam_w(request, scale, blocks.begin(i), blocks.end(i));
  });
  return absl::OkStatus();
}

}  // namespace nibble

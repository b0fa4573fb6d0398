#include "kernels/cpu/layers/cpu_optimizer_ops.h"

#include <cmath>

#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/matrix_check.h"

namespace nibble {
namespace {

using cpu::Blocks;
using cpu::OperandCheck;

constexpr int64_t kSumBlock = 65536;
constexpr int64_t kUpdateBlock = 16384;

}  // namespace

CpuOptimizerOps::CpuOptimizerOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool), kernels_(cpu::TableFor<cpu::OptimizerKernels>(isa)) {}

absl::Status CpuOptimizerOps::Run(const SumOfSquares& request) {
  NIBBLE_RETURN_IF_ERROR(OperandCheck("sum of squares")
                             .That(request.n >= 0, "n is ", request.n, ", below 0")
                             .Pointer("x", request.x, request.n)
                             .Pointer("sum", request.sum, 1)
                             .status());
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
  NIBBLE_RETURN_IF_ERROR(
      OperandCheck("clip scale")
          .Pointer("sum", request.sum, 1)
          .Pointer("norm", request.norm, 1)
          .Pointer("scale", request.scale, 1)
          .That(request.max_norm >= 0, "max_norm is ", request.max_norm, ", below 0")
          .status());
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
  const auto is_share = [](float beta) { return beta >= 0 && beta < 1; };
  const absl::Status status =
      OperandCheck("adamw")
          .That(request.n >= 0, "n is ", request.n, ", below 0")
          .Pointer("param", request.param, request.n)
          .Pointer("m", request.m, request.n)
          .Pointer("v", request.v, request.n)
          .Pointer("grad", request.grad, request.n)
          .That(is_share(request.beta1), "beta1 is ", request.beta1, ", not in [0, 1)")
          .That(is_share(request.beta2), "beta2 is ", request.beta2, ", not in [0, 1)")
          .That(request.eps >= 0, "eps is ", request.eps, ", below 0")
          .That(request.correction1 > 0, "correction1 is ", request.correction1, ", not above 0")
          .That(request.correction2 > 0, "correction2 is ", request.correction2, ", not above 0")
          .That(std::isfinite(request.lr), "lr is ", request.lr)
          .That(std::isfinite(request.decay), "decay is ", request.decay)
          .status();
  if (!status.ok()) return status;
  const float scale = request.scale == nullptr ? 1.0f : *request.scale;
  const Blocks blocks{request.n, kUpdateBlock};
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    kernels_.adam_w(request, scale, blocks.begin(i), blocks.end(i));
  });
  return absl::OkStatus();
}

}  // namespace nibble

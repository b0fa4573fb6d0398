#include "kernels/cpu/layers/cpu_optimizer_ops.h"

#include <algorithm>

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
  double sum = request.add ? *request.sum : 0.0;
  for (int64_t i = 0; i < blocks.count(); ++i) sum += partial[i];
  *request.sum = sum;
  return absl::OkStatus();
}

absl::Status CpuOptimizerOps::Run(const AdamW& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.outcome != nullptr && request.outcome->update == 0) return absl::OkStatus();
  const float scale = request.outcome == nullptr ? 1.0f : request.outcome->scale;
  for (const AdamWRun& run : request.runs) {
    const Blocks blocks{run.n, kUpdateBlock};
    double* largest = partial_.Get(blocks.count());
    pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
      largest[i] = kernels_.adam_w(request, run, scale, blocks.begin(i), blocks.end(i));
    });
    if (run.amax == nullptr) continue;
    *run.amax = 0;
    for (int64_t i = 0; i < blocks.count(); ++i) {
      *run.amax = std::max(*run.amax, static_cast<float>(largest[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble

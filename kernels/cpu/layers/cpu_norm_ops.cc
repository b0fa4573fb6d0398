#include "kernels/cpu/layers/cpu_norm_ops.h"

#include <algorithm>

#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"

namespace nibble {
namespace {

using cpu::Blocks;

constexpr int64_t kNormTaskElements = 32768;
constexpr int64_t kNormCombineCols = 1024;

int NormIndex(DType dtype) { return static_cast<int>(dtype); }

// The largest of the blocks' values.
void CombineAmax(const float* block_amax, int64_t blocks, float* amax) {
  if (amax == nullptr) return;
  *amax = 0;
  for (int64_t i = 0; i < blocks; ++i) *amax = std::max(*amax, block_amax[i]);
}

}  // namespace

CpuNormOps::CpuNormOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool),
      kernels_(cpu::TableFor<cpu::NormKernels>(isa)),
      sums_(cpu::TableFor<cpu::ColumnSumKernels>(isa)) {}

absl::Status CpuNormOps::Forward(const AddNormForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& x = request.x;
  const Blocks blocks = cpu::RowBlocks(x.rows, x.cols, kNormTaskElements);
  float* block_amax = block_amax_.Get(blocks.count());
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    block_amax[i] = kernels_.forward[NormIndex(x.dtype)](request, blocks.begin(i), blocks.end(i));
  });
  CombineAmax(block_amax, blocks.count(), request.amax);
  return absl::OkStatus();
}

absl::Status CpuNormOps::Backward(const NormBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& x = request.x;
  const bool centered = request.norm.centered;
  // The sums of each block for dweight, then for dbias.
  const Blocks blocks = cpu::SumBlocks(x.rows);
  const int64_t stride = centered ? 2 * x.cols : x.cols;
  float* partial = partial_.Get(blocks.count() * stride);
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    float* own = partial + i * stride;
    kernels_.backward[NormIndex(x.dtype)](request, blocks.begin(i), blocks.end(i), own,
                                          own + x.cols);
  });
  const Blocks columns{x.cols, kNormCombineCols};
  pool_.ParallelFor(columns.count() * (centered ? 2 : 1), [&](int64_t task, int) {
    const int64_t i = task % columns.count();
    const bool bias = task >= columns.count();
    sums_.combine(partial + (bias ? x.cols : 0), blocks.count(), stride, columns.begin(i),
                  columns.end(i), bias ? request.dbias : request.dweight);
  });
  return absl::OkStatus();
}

absl::Status CpuNormOps::Forward(const GatedNormForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& y = request.y;
  const Blocks blocks = cpu::RowBlocks(y.rows, y.cols, kNormTaskElements);
  const int64_t width = y.cols / request.groups;
  float* block_amax = block_amax_.Get(blocks.count());
  float* rows = rows_.Get(width * pool_.threads());
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int thread) {
    block_amax[i] = kernels_.gated_forward[NormIndex(y.dtype)](
        request, blocks.begin(i), blocks.end(i), rows + width * thread);
  });
  CombineAmax(block_amax, blocks.count(), request.amax);
  return absl::OkStatus();
}

absl::Status CpuNormOps::Backward(const GatedNormBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& y = request.y;
  const Blocks blocks = cpu::SumBlocks(y.rows);
  const int64_t width = y.cols / request.groups;
  float* partial = partial_.Get(blocks.count() * y.cols);
  float* rows = rows_.Get(width * pool_.threads());
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int thread) {
    kernels_.gated_backward[NormIndex(y.dtype)](request, blocks.begin(i), blocks.end(i),
                                                partial + i * y.cols, rows + width * thread);
  });
  const Blocks columns{y.cols, kNormCombineCols};
  pool_.ParallelFor(columns.count(), [&](int64_t i, int) {
    sums_.combine(partial, blocks.count(), y.cols, columns.begin(i), columns.end(i),
                  request.dweight);
  });
  return absl::OkStatus();
}

}  // namespace nibble

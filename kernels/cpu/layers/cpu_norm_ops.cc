#include "kernels/cpu/layers/cpu_norm_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/matrix_check.h"

namespace nibble {
namespace {

using cpu::Blocks;
using cpu::OperandCheck;
using cpu::View;

constexpr int64_t kNormTaskElements = 32768;
constexpr int64_t kNormCombineCols = 1024;

int NormIndex(DType dtype) { return static_cast<int>(dtype); }

void CheckNorm(OperandCheck& check, const NormParams& norm, const ConstMatrix& x) {
  check.That(x.cols > 0, "x has ", x.cols, " columns, which have no mean");
  check.That(norm.eps >= 0 && std::isfinite(norm.eps), "eps is ", norm.eps, ", below 0");
  check.Pointer("weight", norm.weight, x.cols);
  if (norm.centered) check.Pointer("bias", norm.bias, x.cols);
}

void CheckGroups(OperandCheck& check, int groups, const ConstMatrix& y) {
  check.That(groups > 0 && y.cols > 0 && y.cols % groups == 0, "y has ", y.cols,
             " columns, which are not ", groups, " groups of equal width");
}

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
  const ConstMatrix& x = request.x;
  OperandCheck check("norm forward");
  check.Present("x", x);
  if (request.y.data != nullptr) {
    check.Same("y", request.y, "x", x).Same("sum", request.sum, "x", x);
  }
  if (request.out.data != nullptr) {
    check.Same("out", request.out, "x", x).Pointer("rstd", request.rstd, x.rows);
    if (request.norm.centered) check.Pointer("mean", request.mean, x.rows);
    CheckNorm(check, request.norm, x);
  } else {
    check.That(request.y.data != nullptr || x.rows == 0,
               "neither y nor out is there: nothing is asked");
  }
  if (!check.status().ok()) return check.status();

  const Blocks blocks = cpu::RowBlocks(x.rows, x.cols, kNormTaskElements);
  float* block_amax = block_amax_.Get(blocks.count());
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    block_amax[i] = kernels_.forward[NormIndex(x.dtype)](request, blocks.begin(i), blocks.end(i));
  });
  CombineAmax(block_amax, blocks.count(), request.amax);
  return absl::OkStatus();
}

absl::Status CpuNormOps::Backward(const NormBackward& request) {
  const ConstMatrix& x = request.x;
  const bool centered = request.norm.centered;
  OperandCheck check("norm backward");
  check.Present("x", x).Same("dout", request.dout, "x", x).Same("dx", request.dx, "x", x);
  if (request.residual.data != nullptr) check.Same("residual", request.residual, "x", x);
  check.Pointer("rstd", request.rstd, x.rows).Pointer("dweight", request.dweight, x.cols);
  if (centered) {
    check.Pointer("mean", request.mean, x.rows).Pointer("dbias", request.dbias, x.cols);
  }
  CheckNorm(check, request.norm, x);
  if (!check.status().ok()) return check.status();

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
  const ConstMatrix& y = request.y;
  OperandCheck check("gated norm forward");
  check.Present("y", y).Same("z", request.z, "y", y).Same("out", request.out, "y", y);
  CheckGroups(check, request.groups, y);
  check.Pointer("weight", request.weight, y.cols)
      .Pointer("rstd", request.rstd, y.rows * request.groups)
      .That(request.eps >= 0 && std::isfinite(request.eps), "eps is ", request.eps, ", below 0");
  if (!check.status().ok()) return check.status();

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
  const ConstMatrix& y = request.y;
  OperandCheck check("gated norm backward");
  check.Present("y", y)
      .Same("z", request.z, "y", y)
      .Same("dout", request.dout, "y", y)
      .Same("dy", request.dy, "y", y)
      .Same("dz", request.dz, "y", y);
  CheckGroups(check, request.groups, y);
  check.Pointer("weight", request.weight, y.cols)
      .Pointer("rstd", request.rstd, y.rows * request.groups)
      .Pointer("dweight", request.dweight, y.cols);
  if (!check.status().ok()) return check.status();

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

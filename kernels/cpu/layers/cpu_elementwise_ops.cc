#include "kernels/cpu/layers/cpu_elementwise_ops.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "kernels/cpu/layers/matrix_check.h"

namespace nibble {
namespace {

using cpu::OperandCheck;
using cpu::View;

// Elements per task: enough to hide the dispatch, few enough to balance.
constexpr int64_t kTaskElements = 32768;
constexpr int64_t kZeroBytes = 1 << 20;
constexpr int64_t kCombineCols = 2048;

int Index(DType dtype) { return static_cast<int>(dtype); }

// Matrices without gaps between their rows are one long row, with one remainder instead of one per
// row.
template <class... Matrix>
void Flatten(Matrix&... m) {
  if (!((m.rows <= 1 || m.stride == m.cols) && ...)) return;
  const auto flatten = [](auto& one) {
    one.cols *= one.rows;
    one.stride = one.cols;
    one.rows = std::min<int64_t>(one.rows, 1);
  };
  (flatten(m), ...);
}

OperandCheck CheckActivation(const char* operation, Activation kind, const ConstMatrix& in,
                             const char* out_name, const ConstMatrix& out) {
  OperandCheck check(operation);
  const bool gated = kind == Activation::kSwiglu;
  check.That(kind <= Activation::kSwiglu, "kind is ", static_cast<int>(kind),
             ", which is not an activation");
  check.Present("in", in).Shape(out_name, out, in.rows, gated ? in.cols / 2 : in.cols);
  check.That(!gated || in.cols % 2 == 0, "in has ", in.cols,
             " columns, which are not gate | up of equal width");
  check.That(out.dtype == in.dtype, out_name, " is of another type than in, which is ",
             in.dtype == DType::kF32 ? "f32" : "bf16");
  return check;
}

}  // namespace

CpuElementwiseOps::CpuElementwiseOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool),
      kernels_(cpu::TableFor<cpu::ElementwiseKernels>(isa)),
      sums_(cpu::TableFor<cpu::ColumnSumKernels>(isa)) {}

void CpuElementwiseOps::RunPatches(const cpu::Patches& patches, float* amax,
                                   absl::FunctionRef<float(const cpu::BlockPatch&)> run) {
  const int64_t count = patches.count();
  float* patch_amax = patch_amax_.Get(count);
  pool_.ParallelFor(count, [&](int64_t i, int) { patch_amax[i] = run(patches.at(i)); });
  if (amax == nullptr) return;
  *amax = 0;
  for (int64_t i = 0; i < count; ++i) *amax = std::max(*amax, patch_amax[i]);
}

absl::Status CpuElementwiseOps::Forward(const ActivationForward& request) {
  NIBBLE_RETURN_IF_ERROR(
      CheckActivation("activation forward", request.kind, request.in, "out", View(request.out))
          .status());
  ActivationForward flat = request;
  if (flat.kind != Activation::kSwiglu && flat.bias == nullptr) Flatten(flat.in, flat.out);
  const auto kernel = kernels_.forward[static_cast<int>(flat.kind)][Index(flat.in.dtype)];
  RunPatches({flat.out.rows, flat.out.cols, kTaskElements}, flat.amax,
             [&](const cpu::BlockPatch& patch) { return kernel(flat, patch); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Backward(const ActivationBackward& request) {
  NIBBLE_RETURN_IF_ERROR(
      CheckActivation("activation backward", request.kind, request.in, "dout", request.dout)
          .Same("din", request.din, "in", request.in)
          .status());
  ActivationBackward flat = request;
  if (flat.kind != Activation::kSwiglu && flat.bias == nullptr) {
    Flatten(flat.in, flat.dout, flat.din);
  }
  const auto kernel = kernels_.backward[static_cast<int>(flat.kind)][Index(flat.in.dtype)];
  RunPatches({flat.dout.rows, flat.dout.cols, kTaskElements}, flat.amax,
             [&](const cpu::BlockPatch& patch) { return kernel(flat, patch); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Forward(const BiasForward& request) {
  NIBBLE_RETURN_IF_ERROR(OperandCheck("bias forward")
                             .Present("y", request.y)
                             .Pointer("bias", request.bias, request.y.cols)
                             .status());
  const auto kernel = kernels_.add_bias[Index(request.y.dtype)];
  const cpu::Patches patches(request.y.rows, request.y.cols, kTaskElements);
  pool_.ParallelFor(patches.count(), [&](int64_t i, int) { kernel(request, patches.at(i)); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Backward(const BiasBackward& request) {
  const ConstMatrix& dy = request.dy;
  NIBBLE_RETURN_IF_ERROR(OperandCheck("bias backward")
                             .Present("dy", dy)
                             .Pointer("dbias", request.dbias, dy.cols)
                             .status());
  const cpu::Blocks blocks = cpu::SumBlocks(dy.rows);
  float* partial = partial_.Get(blocks.count() * dy.cols);
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    sums_.sum[Index(dy.dtype)](dy, blocks.begin(i), blocks.end(i), partial + i * dy.cols);
  });
  const cpu::Blocks columns{dy.cols, kCombineCols};
  pool_.ParallelFor(columns.count(), [&](int64_t i, int) {
    sums_.combine(partial, blocks.count(), dy.cols, columns.begin(i), columns.end(i),
                  request.dbias);
  });
  return absl::OkStatus();
}

template <class Request, class Kernel>
absl::Status CpuElementwiseOps::RunFlat(const char* operation, const Request& request,
                                        Kernel (&kernels)[2][2]) {
  NIBBLE_RETURN_IF_ERROR(OperandCheck(operation)
                             .Present("from", request.from)
                             .Shape("to", request.to, request.from.rows, request.from.cols)
                             .status());
  Request flat = request;
  Flatten(flat.from, flat.to);
  const auto kernel = kernels[Index(flat.from.dtype)][Index(flat.to.dtype)];
  const cpu::Patches patches(flat.to.rows, flat.to.cols, kTaskElements);
  pool_.ParallelFor(patches.count(), [&](int64_t i, int) { kernel(flat, patches.at(i)); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Run(const Cast& request) {
  return RunFlat("cast", request, kernels_.cast);
}

absl::Status CpuElementwiseOps::Run(const Accumulate& request) {
  return RunFlat("accumulate", request, kernels_.accumulate);
}

absl::Status CpuElementwiseOps::Zero(void* data, int64_t bytes) {
  NIBBLE_RETURN_IF_ERROR(OperandCheck("zero")
                             .That(bytes >= 0, "bytes is ", bytes, ", below 0")
                             .That(bytes <= 0 || data != nullptr, "data is null, bytes is ", bytes)
                             .status());
  const cpu::Blocks blocks{bytes, kZeroBytes};
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    std::memset(static_cast<char*>(data) + blocks.begin(i), 0, blocks.end(i) - blocks.begin(i));
  });
  return absl::OkStatus();
}

}  // namespace nibble

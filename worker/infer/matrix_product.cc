#include "worker/infer/matrix_product.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/matrix_check.h"
#include "kernels/gemm/gemm.h"
#include "worker/infer/kernels/gemv_kernels.h"

namespace nibble {
namespace {

// From so many rows on, the matrix units win although they copy W first.
constexpr int64_t kGemmRows = 9;
// Of W, for a task: long enough to hide the hand-over, short enough to share out.
constexpr int64_t kTaskBytes = 128 << 10;

template <class T, class Y>
void Gemv(ThreadPool& pool, const ConstMatrix& x, const ConstMatrix& w, const MutableMatrix& y,
          void (*kernel)(const cpu::GemvTask<T, Y>&)) {
  const int64_t row_bytes = std::max<int64_t>(1, w.cols * static_cast<int64_t>(sizeof(T)));
  const cpu::Blocks blocks = {w.rows, std::max<int64_t>(4, kTaskBytes / row_bytes / 4 * 4)};
  pool.ParallelFor(blocks.count(), [&](int64_t i, int) {
    kernel({.x = static_cast<const T*>(x.data),
            .x_stride = x.stride,
            .rows = x.rows,
            .w = static_cast<const T*>(w.data) + blocks.begin(i) * w.stride,
            .in = w.cols,
            .outputs = blocks.end(i) - blocks.begin(i),
            .y = static_cast<Y*>(y.data) + blocks.begin(i),
            .y_stride = y.stride});
  });
}

}  // namespace

absl::Status Multiply(DecodeDevice& device, const ConstMatrix& x, const ConstMatrix& w,
                      const MutableMatrix& y) {
  cpu::OperandCheck check("product");
  check.Present("w", w)
      .Shape("x", x, x.rows, w.cols)
      .Shape("y", y, x.rows, w.rows)
      .That(w.stride == w.cols, "w's rows are ", w.stride, " elements apart, not ", w.cols)
      .That(x.dtype == w.dtype, "x is ", cpu::Describe(x), " but w is ", cpu::Describe(w))
      .That(y.dtype == x.dtype || y.dtype == DType::kF32, "y is ", cpu::Describe(cpu::View(y)),
            " but x is ", cpu::Describe(x));
  if (!check.status().ok()) return check.status();
  if (x.rows >= kGemmRows) return device.gemm->Gemm(Fprop(x, w, y));
  const cpu::GemvKernels& kernels = cpu::GemvKernelsFor(device.isa);
  if (x.dtype == DType::kF32) {
    Gemv<float, float>(device.pool, x, w, y, kernels.fp32);
  } else if (y.dtype == DType::kF32) {
    Gemv<uint16_t, float>(device.pool, x, w, y, kernels.bf16_to_fp32);
  } else {
    Gemv<uint16_t, uint16_t>(device.pool, x, w, y, kernels.bf16);
  }
  return absl::OkStatus();
}

absl::StatusOr<DecodeLinear> DecodeLinear::Find(DecodeDevice& device, const LoadedWeights& weights,
                                                int64_t block, std::string_view kind) {
  for (const LinearInfo& linear : weights.outline().linears) {
    if (linear.block != block || linear.kind != kind) continue;
    return DecodeLinear(device, weights.matrix(linear.weight),
                        linear.bias ? weights.vector(linear.weight + 1) : nullptr);
  }
  return absl::InternalError(
      absl::StrCat("the outline has no ", std::string(kind), " in block ", block));
}

absl::Status DecodeLinear::ForwardWithoutBias(const ConstMatrix& x, const MutableMatrix& y) const {
  return Multiply(*device_, x, weight_, y);
}

absl::Status DecodeLinear::Forward(const ConstMatrix& x, const MutableMatrix& y) const {
  absl::Status status = ForwardWithoutBias(x, y);
  if (!status.ok() || bias_ == nullptr) return status;
  return device_->ops.elementwise().Forward(BiasForward{.y = y, .bias = bias_});
}

}  // namespace nibble

#include "worker/infer/loaded_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/matrix_check.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/gemm/gemm.h"
#include "worker/infer/kernels/gemv_kernels.h"

namespace nibble {
namespace {

// Linears, embedding, positions and head; a convolution's taps are a vector per channel.
bool IsMatrix(const ParamInfo& param) {
  return param.linear >= 0 || (param.block < 0 && param.shape.size() == 2);
}

}  // namespace

absl::StatusOr<LoadedWeights> LoadedWeights::Load(WeightSource& source, DType precision,
                                                  DecodeDevice& device) {
  LoadedWeights weights;
  weights.outline_ = source.outline();
  weights.precision_ = precision;
  cpu::Scratch<float> staging;
  for (const ParamInfo& param : weights.outline_.params) {
    const int64_t n = param.elements();
    const bool rounded = precision == DType::kBf16 && IsMatrix(param);
    const int64_t bytes = n * (rounded ? 2 : 4);
    absl::StatusOr<Buffer> buffer = device.memory.Allocate(static_cast<size_t>(bytes));
    if (!buffer.ok()) {
      return absl::Status(buffer.status().code(),
                          absl::StrCat(param.name, ": ", buffer.status().message()));
    }
    float* values = rounded ? staging.Get(n) : buffer->data<float>();
    absl::Status status = source.Read(param, absl::MakeSpan(values, static_cast<size_t>(n)));
    if (status.ok() && rounded) {
      const int64_t rows = param.shape[0], cols = n / rows;
      status = device.ops.elementwise().Run(
          Cast{.from = ConstMatrix::Of(values, rows, cols),
               .to = MutableMatrix::OfBf16(buffer->data<uint16_t>(), rows, cols)});
    }
    if (!status.ok()) return status;
    weights.bytes_ += bytes;
    weights.buffers_.push_back(*std::move(buffer));
  }
  return weights;
}

ConstMatrix LoadedWeights::matrix(int64_t param) const {
  const auto i = static_cast<size_t>(param);
  const int64_t rows = outline_.params[i].shape[0], cols = outline_.params[i].elements() / rows;
  return {buffers_[i].data(), precision_, rows, cols, cols};
}

const float* LoadedWeights::vector(int64_t param) const {
  return buffers_[static_cast<size_t>(param)].data<float>();
}

absl::StatusOr<const float*> LoadedWeights::FindVector(std::string_view name) const {
  const absl::StatusOr<int64_t> param = outline_.Find(name);
  if (!param.ok()) return absl::InternalError(param.status().message());
  return vector(*param);
}

absl::StatusOr<ConstMatrix> LoadedWeights::FindMatrix(std::string_view name) const {
  const absl::StatusOr<int64_t> param = outline_.Find(name);
  if (!param.ok()) return absl::InternalError(param.status().message());
  return matrix(*param);
}

namespace {

// From this number of rows on, the matrix units win although they copy W first.
constexpr int64_t kGemmRows = 9;
// Bytes of W per task: large enough to hide the dispatch, small enough to balance.
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

#include "kernels/wrapped/wrapped_ops.h"

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/status_macros.h"

namespace nibble {
namespace {

template <class Matrix>
double Bytes(const Matrix& m) {
  return m.data == nullptr ? 0.0 : static_cast<double>(m.rows * m.cols * DTypeBytes(m.dtype));
}
template <class... Matrices>
double AllBytes(const Matrices&... m) {
  return (Bytes(m) + ... + 0.0);
}

double CopyBytes(const CopyRequest& copy) {
  if (copy.out == nullptr) return 0;
  const QuantizedTensor& t = *copy.out;
  double bytes = t.packed() ? static_cast<double>(t.code_bytes() + t.scale_bytes()) : 0.0;
  if (t.emulated_layout() != EmulatedLayout::kNone) {
    bytes += 2.0 * static_cast<double>(t.rows() * t.cols());
  }
  return bytes;
}

// Causal: half of the square. Two GEMMs forward, five backward.
double AttentionFlops(const AttentionShape& shape, const SequenceLayout& layout, double gemms) {
  return gemms * static_cast<double>(layout.tokens() * layout.length) * shape.heads *
         shape.head_dim;
}

// A request with its own copies of the host arrays that it names.
template <class Request>
class Kept {
 public:
  explicit Kept(const Request& request) : request_(request) {
    if constexpr (requires { request_.layout; }) Keep(request_.layout.continued);
    if constexpr (requires { request_.caches; }) Keep(request_.caches);
    if constexpr (requires { request_.windows; }) Keep(request_.windows);
    if constexpr (requires { request_.states; }) Keep(request_.states);
    if constexpr (requires { request_.runs; }) Keep(request_.runs);
    if constexpr (requires { request_.parts; }) Keep(request_.parts);
  }
  const Request& operator*() const { return request_; }

 private:
  template <class T>
  void Keep(std::span<T>& span) {
    if (span.empty()) return;
    auto copy = std::make_shared<std::vector<std::remove_const_t<T>>>(span.begin(), span.end());
    span = {copy->data(), copy->size()};
    kept_.push_back(std::move(copy));
  }

  Request request_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace

OpCost CostOf(const QuantizeRequest& request) {
  const bool weight = request.x.dtype == DType::kF32;
  const auto is_stochastic = [](const CopyRequest& copy) {
    return copy.out != nullptr && copy.out->spec().rounding == Rounding::kStochastic;
  };
  const bool gradient = is_stochastic(request.row) || is_stochastic(request.column);
  return {.kind = weight     ? "quantize weight"
                  : gradient ? "quantize gradient (stochastic)"
                             : "quantize (nearest)",
          .bytes = Bytes(request.x) + CopyBytes(request.row) + CopyBytes(request.column)};
}

absl::Status WrappedBackend::Quantize(const QuantizeRequest& request) {
  if (passage_.direct()) return inner_.Quantize(request);
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return passage_.Pass(CostOf(request), [this, request] { return inner_.Quantize(request); });
}

absl::Status WrappedGemm::Gemm(const GemmRequest& request) {
  if (passage_.direct()) return inner_.Gemm(request);
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const bool rows_a = request.a.contract == Contract::kRows;
  const bool rows_b = request.b.contract == Contract::kRows;
  const double flops = 2.0 * static_cast<double>(request.c.rows) *
                       static_cast<double>(request.c.cols) * static_cast<double>(request.a.depth());
  return passage_.Pass(
      {.kind = rows_a ? "gemm wgrad" : (rows_b ? "gemm dgrad" : "gemm fprop"), .flops = flops},
      [this, request] { return inner_.Gemm(request); });
}

// Checks the request, then passes inner_.family().method(request).
#define NIBBLE_PASS(family, method, ...)                   \
  if (passage_.direct()) return inner_.family().method(r); \
  NIBBLE_RETURN_IF_ERROR(Validate(r));                     \
  return passage_.Pass(OpCost{__VA_ARGS__},                \
                       [this, kept = Kept(r)] { return inner_.family().method(*kept); })

absl::Status WrappedLayerOps::Forward(const AddNormForward& r) {
  const double sum = r.y.data == nullptr ? 0.0 : Bytes(r.sum);
  NIBBLE_PASS(norm, Forward, "norm forward", 0, AllBytes(r.x, r.y, r.out) + sum);
}
absl::Status WrappedLayerOps::Backward(const NormBackward& r) {
  NIBBLE_PASS(norm, Backward, "norm backward", 0, AllBytes(r.x, r.dout, r.residual, r.dx));
}
absl::Status WrappedLayerOps::Forward(const GatedNormForward& r) {
  NIBBLE_PASS(norm, Forward, "gated norm forward", 0, AllBytes(r.y, r.z, r.out));
}
absl::Status WrappedLayerOps::Backward(const GatedNormBackward& r) {
  NIBBLE_PASS(norm, Backward, "gated norm backward", 0, AllBytes(r.y, r.z, r.dout, r.dy, r.dz));
}
absl::Status WrappedLayerOps::Forward(const ActivationForward& r) {
  NIBBLE_PASS(elementwise, Forward, "activation forward", 0, AllBytes(r.in, r.out));
}
absl::Status WrappedLayerOps::Backward(const ActivationBackward& r) {
  NIBBLE_PASS(elementwise, Backward, "activation backward", 0, AllBytes(r.in, r.dout, r.din));
}
absl::Status WrappedLayerOps::Forward(const BiasForward& r) {
  NIBBLE_PASS(elementwise, Forward, "bias", 0, 2 * Bytes(r.y));
}
absl::Status WrappedLayerOps::Backward(const BiasBackward& r) {
  NIBBLE_PASS(elementwise, Backward, "bias", 0, Bytes(r.dy));
}
absl::Status WrappedLayerOps::Run(const Cast& r) {
  NIBBLE_PASS(elementwise, Run, "cast weight", 0, AllBytes(r.from, r.to));
}
absl::Status WrappedLayerOps::Run(const Accumulate& r) {
  NIBBLE_PASS(elementwise, Run, "accumulate", 0, Bytes(r.from) + 2 * Bytes(r.to));
}
absl::Status WrappedLayerOps::Run(const CopyParts& r) {
  double bytes = 0;
  for (const CopyParts::Part& part : r.parts) bytes += static_cast<double>(part.bytes());
  NIBBLE_PASS(elementwise, Run, "copies", 0, bytes);
}
absl::Status WrappedLayerOps::Run(const FillInitial& r) {
  NIBBLE_PASS(elementwise, Run, "initial values", 0, 4.0 * static_cast<double>(r.n));
}
absl::Status WrappedLayerOps::Zero(void* data, int64_t bytes) {
  if (passage_.direct()) return inner_.elementwise().Zero(data, bytes);
  NIBBLE_RETURN_IF_ERROR(ValidateZero(data, bytes));
  return passage_.Pass({"zero", 0, static_cast<double>(bytes)},
                       [this, data, bytes] { return inner_.elementwise().Zero(data, bytes); });
}
absl::Status WrappedLayerOps::Forward(const EmbeddingForward& r) {
  NIBBLE_PASS(token, Forward, "embedding forward", 0, 3 * Bytes(r.out));
}
absl::Status WrappedLayerOps::Backward(const EmbeddingBackward& r) {
  NIBBLE_PASS(token, Backward, "embedding backward", 0, 5 * Bytes(r.dout));
}
absl::Status WrappedLayerOps::Run(const CrossEntropy& r) {
  NIBBLE_PASS(token, Run, "cross entropy", 0, AllBytes(r.logits, r.dlogits));
}
absl::Status WrappedLayerOps::Run(const Rope& r) {
  NIBBLE_PASS(attention, Run, "rope", 0, 2 * Bytes(r.qkv));
}
absl::Status WrappedLayerOps::Forward(const AttentionForward& r) {
  NIBBLE_PASS(attention, Forward, "attention forward", AttentionFlops(r.shape, r.layout, 2),
              AllBytes(r.qkv, r.out));
}
absl::Status WrappedLayerOps::Backward(const AttentionBackward& r) {
  NIBBLE_PASS(attention, Backward, "attention backward", AttentionFlops(r.shape, r.layout, 5),
              AllBytes(r.qkv, r.out, r.dout, r.dqkv));
}
absl::Status WrappedLayerOps::Forward(const ConvForward& r) {
  NIBBLE_PASS(mamba, Forward, "convolution forward", 0, AllBytes(r.in, r.out));
}
absl::Status WrappedLayerOps::Backward(const ConvBackward& r) {
  NIBBLE_PASS(mamba, Backward, "convolution backward", 0, AllBytes(r.in, r.dout, r.din));
}
absl::Status WrappedLayerOps::Forward(const ScanForward& r) {
  NIBBLE_PASS(mamba, Forward, "scan forward", 0, AllBytes(r.xbc, r.dt, r.y));
}
absl::Status WrappedLayerOps::Backward(const ScanBackward& r) {
  NIBBLE_PASS(mamba, Backward, "scan backward", 0, AllBytes(r.xbc, r.dt, r.dy, r.dxbc, r.ddt));
}
absl::Status WrappedLayerOps::Run(const SumOfSquares& r) {
  NIBBLE_PASS(optimizer, Run, "gradient norm", 0, 4.0 * static_cast<double>(r.n));
}
absl::Status WrappedLayerOps::Run(const AdamW& r) {
  // Reads four vectors and writes three, and one of half the size where it is asked for.
  double bytes = 0;
  for (const AdamWRun& run : r.runs) {
    bytes += (run.bf16 != nullptr ? 30.0 : 28.0) * static_cast<double>(run.n);
  }
  NIBBLE_PASS(optimizer, Run, "adamw", 0, bytes);
}
absl::Status WrappedLayerOps::Run(const AddLosses& r) {
  NIBBLE_PASS(step, Run, "step numbers", 0, 8.0 * static_cast<double>(r.n));
}
absl::Status WrappedLayerOps::Run(const CountNonFinite& r) {
  NIBBLE_PASS(step, Run, "step numbers", 0, 0);
}
absl::Status WrappedLayerOps::Run(const Judge& r) { NIBBLE_PASS(step, Run, "step numbers", 0, 0); }

#undef NIBBLE_PASS

}  // namespace nibble

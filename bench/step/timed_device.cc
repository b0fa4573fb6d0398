#include "bench/step/timed_device.h"

#include <chrono>

#include "bench/limits.h"

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

}  // namespace

absl::Status OpTimes::Time(const std::string& kind, double flops, double bytes,
                           absl::FunctionRef<absl::Status()> run) {
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = run();
  if (status.ok()) status = backend_.Synchronize();
  OpTotals& totals = totals_[kind];
  ++totals.calls;
  totals.seconds += bench::Since(begin);
  totals.flops += flops;
  totals.bytes += bytes;
  return status;
}

absl::Status TimedBackend::Quantize(const QuantizeRequest& request) {
  const bool weight = request.x.dtype == DType::kF32;
  const CopyRequest& any = request.row.out != nullptr ? request.row : request.column;
  const bool gradient = any.out->spec().rounding == Rounding::kStochastic ||
                        (request.column.out != nullptr &&
                         request.column.out->spec().rounding == Rounding::kStochastic);
  return times_.Time(weight     ? "quantize weight"
                     : gradient ? "quantize gradient (stochastic)"
                                : "quantize (nearest)",
                     0, Bytes(request.x) + CopyBytes(request.row) + CopyBytes(request.column),
                     [&] { return inner_.Quantize(request); });
}

absl::Status TimedGemm::Gemm(const GemmRequest& request) {
  const bool rows_a = request.a.contract == Contract::kRows;
  const bool rows_b = request.b.contract == Contract::kRows;
  const char* kind = rows_a ? "gemm wgrad" : (rows_b ? "gemm dgrad" : "gemm fprop");
  const double flops = 2.0 * static_cast<double>(request.c.rows) *
                       static_cast<double>(request.c.cols) * static_cast<double>(request.a.depth());
  return times_.Time(kind, flops, 0, [&] { return inner_.Gemm(request); });
}

absl::Status TimedLayerOps::Forward(const AddNormForward& r) {
  const double sum = r.y.data == nullptr ? 0.0 : Bytes(r.sum);
  return times_.Time("norm forward", 0, AllBytes(r.x, r.y, r.out) + sum,
                     [&] { return inner_.norm().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const NormBackward& r) {
  return times_.Time("norm backward", 0, AllBytes(r.x, r.dout, r.residual, r.dx),
                     [&] { return inner_.norm().Backward(r); });
}
absl::Status TimedLayerOps::Forward(const GatedNormForward& r) {
  return times_.Time("gated norm forward", 0, AllBytes(r.y, r.z, r.out),
                     [&] { return inner_.norm().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const GatedNormBackward& r) {
  return times_.Time("gated norm backward", 0, AllBytes(r.y, r.z, r.dout, r.dy, r.dz),
                     [&] { return inner_.norm().Backward(r); });
}
absl::Status TimedLayerOps::Forward(const ActivationForward& r) {
  return times_.Time("activation forward", 0, AllBytes(r.in, r.out),
                     [&] { return inner_.elementwise().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const ActivationBackward& r) {
  return times_.Time("activation backward", 0, AllBytes(r.in, r.dout, r.din),
                     [&] { return inner_.elementwise().Backward(r); });
}
absl::Status TimedLayerOps::Forward(const BiasForward& r) {
  return times_.Time("bias", 0, 2 * Bytes(r.y), [&] { return inner_.elementwise().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const BiasBackward& r) {
  return times_.Time("bias", 0, Bytes(r.dy), [&] { return inner_.elementwise().Backward(r); });
}
absl::Status TimedLayerOps::Run(const Cast& r) {
  return times_.Time("cast weight", 0, AllBytes(r.from, r.to),
                     [&] { return inner_.elementwise().Run(r); });
}
absl::Status TimedLayerOps::Run(const Accumulate& r) {
  return times_.Time("accumulate", 0, Bytes(r.from) + 2 * Bytes(r.to),
                     [&] { return inner_.elementwise().Run(r); });
}
absl::Status TimedLayerOps::Zero(void* data, int64_t bytes) {
  return times_.Time("zero", 0, static_cast<double>(bytes),
                     [&] { return inner_.elementwise().Zero(data, bytes); });
}
absl::Status TimedLayerOps::Forward(const EmbeddingForward& r) {
  return times_.Time("embedding forward", 0, 3 * Bytes(r.out),
                     [&] { return inner_.token().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const EmbeddingBackward& r) {
  return times_.Time("embedding backward", 0, 5 * Bytes(r.dout),
                     [&] { return inner_.token().Backward(r); });
}
absl::Status TimedLayerOps::Run(const CrossEntropy& r) {
  return times_.Time("cross entropy", 0, AllBytes(r.logits, r.dlogits),
                     [&] { return inner_.token().Run(r); });
}
absl::Status TimedLayerOps::Run(const Rope& r) {
  return times_.Time("rope", 0, 2 * Bytes(r.qkv), [&] { return inner_.attention().Run(r); });
}
absl::Status TimedLayerOps::Forward(const AttentionForward& r) {
  return times_.Time("attention forward", AttentionFlops(r.shape, r.layout, 2),
                     AllBytes(r.qkv, r.out), [&] { return inner_.attention().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const AttentionBackward& r) {
  return times_.Time("attention backward", AttentionFlops(r.shape, r.layout, 5),
                     AllBytes(r.qkv, r.out, r.dout, r.dqkv),
                     [&] { return inner_.attention().Backward(r); });
}
absl::Status TimedLayerOps::Forward(const ConvForward& r) {
  return times_.Time("convolution forward", 0, AllBytes(r.in, r.out),
                     [&] { return inner_.mamba().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const ConvBackward& r) {
  return times_.Time("convolution backward", 0, AllBytes(r.in, r.dout, r.din),
                     [&] { return inner_.mamba().Backward(r); });
}
absl::Status TimedLayerOps::Forward(const ScanForward& r) {
  return times_.Time("scan forward", 0, AllBytes(r.xbc, r.dt, r.y),
                     [&] { return inner_.mamba().Forward(r); });
}
absl::Status TimedLayerOps::Backward(const ScanBackward& r) {
  return times_.Time("scan backward", 0, AllBytes(r.xbc, r.dt, r.dy, r.dxbc, r.ddt),
                     [&] { return inner_.mamba().Backward(r); });
}
absl::Status TimedLayerOps::Run(const SumOfSquares& r) {
  return times_.Time("gradient norm", 0, 4.0 * static_cast<double>(r.n),
                     [&] { return inner_.optimizer().Run(r); });
}
absl::Status TimedLayerOps::Run(const ClipScale& r) {
  return times_.Time("gradient norm", 0, 0, [&] { return inner_.optimizer().Run(r); });
}
absl::Status TimedLayerOps::Run(const AdamW& r) {
  // Reads four vectors and writes three.
  return times_.Time("adamw", 0, 28.0 * static_cast<double>(r.n),
                     [&] { return inner_.optimizer().Run(r); });
}

}  // namespace nibble

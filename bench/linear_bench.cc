// A linear layer's forward pass against the BF16 product alone: quantise the activations and
// multiply by weights already quantised, or multiply BF16 by BF16. Every iteration times both;
// of_bf16 is the median ratio. The limit of either is the processor's matrix rate: fp32_GFLOP/s of
// the same library on square matrices in the same run.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "bench/alternate.h"
#include "bench/limits.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gemm/cpu_gemm.h"

namespace nibble::bench {
namespace {

CpuBackend& Backend() {
  static const std::unique_ptr<CpuBackend> backend = *CpuBackend::Create({});
  return *backend;
}

CpuGemm& Engine() {
  static const std::unique_ptr<CpuGemm> engine = *CpuGemm::Create(Backend().pool(), {});
  return *engine;
}

QuantizedTensor Make(OperandSpec spec, int64_t rows, int64_t cols) {
  return *QuantizedTensor::Create(Backend().memory(), {.spec = spec,
                                                       .orientation = Orientation::kRow,
                                                       .rows = rows,
                                                       .cols = cols,
                                                       .packed = false,
                                                       .emulated = EmulatedLayout::kSource});
}

// The best the library does here: a large FP32 product.
double Fp32Limit() {
  constexpr int64_t kSize = 2048;
  const std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f);
  std::vector<float> c(kSize * kSize);
  const GemmRequest request =
      Fprop(ConstMatrix::Of(a.data(), kSize, kSize), ConstMatrix::Of(b.data(), kSize, kSize),
            MutableMatrix::Of(c.data(), kSize, kSize));
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) seconds.push_back(Seconds([&] { (void)Engine().Gemm(request); }));
  return 2.0 * kSize * kSize * kSize / Median(seconds) / 1e9;
}

void Forward(benchmark::State& state) {
  const int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  const std::vector<uint16_t> x = RandomBf16(tokens * in, 1);
  const std::vector<uint16_t> w = RandomBf16(out * in, 2);
  std::vector<uint16_t> y(tokens * out);
  const ConstMatrix xm = ConstMatrix::OfBf16(x.data(), tokens, in);
  const ConstMatrix wm = ConstMatrix::OfBf16(w.data(), out, in);
  const MutableMatrix ym = MutableMatrix::OfBf16(y.data(), tokens, out);

  OperandSpec weights = OperandSpec::Of(Format::kNvfp4);
  weights.block = {16, 16};
  QuantizedTensor qw = Make(weights, out, in);
  QuantizedTensor qx = Make(OperandSpec::Of(Format::kNvfp4), tokens, in);
  QuantizeRequest quantize_w{.x = wm};
  quantize_w.row.out = &qw;
  QuantizeRequest quantize_x{.x = xm};
  quantize_x.row.out = &qx;
  absl::Status status = Backend().Quantize(quantize_w);

  const Alternated times = Alternate(
      state, [&] { return Seconds([&] { status.Update(Engine().Gemm(Fprop(xm, wm, ym))); }); },
      [&] {
        return Seconds([&] {
          status.Update(Backend().Quantize(quantize_x));
          status.Update(Engine().Gemm(Fprop(&qx, &qw, ym)));
        });
      });
  SkipUnlessOk(state, status);
  const double flop = 2.0 * tokens * in * out;
  state.counters["GFLOP/s"] = flop / times.own / 1e9;
  state.counters["bf16_GFLOP/s"] = flop / times.limit / 1e9;
  state.counters["of_bf16"] = times.ratio;
  state.counters["target"] = 0.88;
  state.counters["fp32_GFLOP/s"] = Fp32Limit();
}
BENCHMARK(Forward)
    ->ArgNames({"tokens", "in", "out"})
    ->Args({4096, 1024, 4096})
    ->Args({2048, 512, 2048})
    ->UseManualTime()
    ->MinTime(2.0)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("backend", nibble::bench::Backend().Name());
  benchmark::AddCustomContext("gemm", nibble::bench::Engine().Name());
  benchmark::RunSpecifiedBenchmarks();
}

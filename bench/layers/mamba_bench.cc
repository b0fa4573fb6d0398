// Mamba-2's scan and convolution, in BF16. The limit of the scan is its packed matmul, on operands
// of the same size that stay in the cache, measured alternately with it on the same number of
// threads: of_panel is the median ratio. The operations of its matmuls count, for visible pairs of
// tokens only; in the backward pass they include the states, which are recomputed. The convolution
// is compared with memcpy of the bytes that it reads and writes.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "bench/alternate.h"
#include "bench/layers/panel_limit.h"
#include "kernels/cpu/layers/cpu_mamba_ops.h"

namespace nibble::bench {
namespace {

CpuMambaOps& Ops() {
  static CpuMambaOps ops(Pool());
  return ops;
}

struct Scan {
  explicit Scan(const benchmark::State& state)
      : shape{static_cast<int>(state.range(2)), static_cast<int>(state.range(3)), 1,
              static_cast<int>(state.range(4)), static_cast<int>(state.range(5))},
        layout{state.range(0), state.range(1)},
        xbc(RandomBf16(layout.tokens() * shape.xbc_cols(), 1)),
        dt(RandomBf16(layout.tokens() * shape.heads, 2, -4)),
        dy(RandomBf16(layout.tokens() * shape.d_inner(), 3)),
        y(dy.size()),
        dxbc(xbc.size()),
        ddt(dt.size()),
        zeros(shape.heads),
        ones(shape.heads, 1),
        sums(3 * shape.heads) {}

  ConstMatrix In(const std::vector<uint16_t>& m, int64_t cols) const {
    return ConstMatrix::OfBf16(m.data(), layout.tokens(), cols);
  }
  MutableMatrix Out(std::vector<uint16_t>& m, int64_t cols) const {
    return MutableMatrix::OfBf16(m.data(), layout.tokens(), cols);
  }
  ScanParams Params() const { return {zeros.data(), ones.data(), ones.data()}; }
  absl::Status Forward() {
    return Ops().Forward(ScanForward{shape, Params(), layout, In(xbc, shape.xbc_cols()),
                                     In(dt, shape.heads), Out(y, shape.d_inner())});
  }
  absl::Status Backward() {
    return Ops().Backward(
        ScanBackward{shape, Params(), layout, In(xbc, shape.xbc_cols()), In(dt, shape.heads),
                     In(dy, shape.d_inner()), Out(dxbc, shape.xbc_cols()), Out(ddt, shape.heads),
                     sums.data(), sums.data() + shape.heads, sums.data() + 2 * shape.heads});
  }
  // FLOP per token of one matmul: PairFlop over the visible pairs of a chunk, with vectors of
  // length `depth`; StateFlop with states.
  double PairFlop(double depth) const { return (shape.chunk + 1.0) * depth; }
  double StateFlop() const { return 2.0 * static_cast<double>(shape.d_inner()) * shape.state; }
  double ForwardFlop() const {
    return PairFlop(shape.state) + PairFlop(static_cast<double>(shape.d_inner())) + 2 * StateFlop();
  }
  double BackwardFlop() const {
    return 3 * PairFlop(shape.state) + 2 * PairFlop(static_cast<double>(shape.d_inner())) +
           5 * StateFlop();
  }

  ScanShape shape;
  SequenceLayout layout;
  std::vector<uint16_t> xbc, dt, dy, y, dxbc, ddt;
  std::vector<float> zeros, ones, sums;
};

template <class Run>
void Measure(benchmark::State& state, const Scan& scan, double token_flop, Run&& run) {
  const double tokens = static_cast<double>(scan.layout.tokens());
  const Alternated times = AgainstPanel(state, scan.shape.chunk, scan.shape.head_dim,
                                        scan.shape.chunk, tokens * token_flop, run);
  state.counters["Mtokens/s"] = tokens / times.own / 1e6;
}

void ForwardScan(benchmark::State& state) {
  Scan scan(state);
  Measure(state, scan, scan.ForwardFlop(), [&] { return scan.Forward(); });
}
void BackwardScan(benchmark::State& state) {
  Scan scan(state);
  Measure(state, scan, scan.BackwardFlop(), [&] { return scan.Backward(); });
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"sequences", "length", "heads", "head_dim", "state", "chunk"})
      ->Args({2, 2048, 24, 64, 128, 128})
      ->Args({8, 256, 8, 32, 32, 128})
      ->UseManualTime()
      ->MinTime(0.5)
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ForwardScan)->Apply(Shapes);
BENCHMARK(BackwardScan)->Apply(Shapes);

struct Conv {
  explicit Conv(const benchmark::State& state)
      : tokens(state.range(0)),
        channels(state.range(1)),
        in(RandomBf16(tokens * channels, 1)),
        dout(RandomBf16(tokens * channels, 2)),
        out(in.size()),
        weight(4 * channels, 0.3f),
        bias(channels, 0.1f),
        dweight(weight.size()),
        dbias(channels) {}

  absl::Status Forward() {
    const ConvForward request = {.layout = {1, tokens},
                                 .weight = weight.data(),
                                 .bias = bias.data(),
                                 .in = ConstMatrix::OfBf16(in.data(), tokens, channels),
                                 .out = MutableMatrix::OfBf16(out.data(), tokens, channels)};
    return Ops().Forward(request);
  }
  absl::Status Backward() {
    const ConvBackward request = {.layout = {1, tokens},
                                  .weight = weight.data(),
                                  .bias = bias.data(),
                                  .in = ConstMatrix::OfBf16(in.data(), tokens, channels),
                                  .dout = ConstMatrix::OfBf16(dout.data(), tokens, channels),
                                  .din = MutableMatrix::OfBf16(out.data(), tokens, channels),
                                  .dweight = dweight.data(),
                                  .dbias = dbias.data()};
    return Ops().Backward(request);
  }
  int64_t matrix_bytes() const { return 2 * tokens * channels; }

  int64_t tokens, channels;
  std::vector<uint16_t> in, dout, out;
  std::vector<float> weight, bias, dweight, dbias;
};

void ForwardConv(benchmark::State& state) {
  Conv conv(state);
  AgainstMemcpy(state, Pool(), 2 * conv.matrix_bytes(), [&] { return conv.Forward(); });
}
void BackwardConv(benchmark::State& state) {
  Conv conv(state);
  AgainstMemcpy(state, Pool(), 3 * conv.matrix_bytes(), [&] { return conv.Backward(); });
}

void ConvShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tokens", "channels"})
      ->Args({4096, 1792})
      ->Args({2048, 320})
      ->UseManualTime()
      ->MinTime(0.3)
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ForwardConv)->Apply(ConvShapes);
BENCHMARK(BackwardConv)->Apply(ConvShapes);

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::RunPanelBench(argc, argv); }

// Attention forward and backward, and rotary positions. The limit of attention is its packed
// matmul, on blocks of the same size that stay in the cache, measured alternately with it on the
// same number of threads: of_panel is the median ratio. Only visible pairs of query and key count:
// two matmuls forward, five backward (scores are recomputed). Rotations are compared with memcpy of
// the bytes that they touch.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/alternate.h"
#include "bench/layers/panel_limit.h"
#include "kernels/cpu/layers/cpu_attention_ops.h"

namespace nibble::bench {
namespace {

CpuAttentionOps& Ops() {
  static CpuAttentionOps ops(Pool());
  return ops;
}

struct Problem {
  explicit Problem(const benchmark::State& state)
      : shape{static_cast<int>(state.range(2)), static_cast<int>(state.range(3)),
              static_cast<int>(state.range(4)), 1 / std::sqrt(static_cast<float>(state.range(4)))},
        layout{state.range(0), state.range(1)},
        qkv(RandomBf16(layout.tokens() * shape.qkv_cols(), 1)),
        dqkv(qkv.size()),
        out(layout.tokens() * shape.out_cols()),
        dout(RandomBf16(out.size(), 2)),
        lse(layout.tokens() * shape.heads) {}

  absl::Status Forward() {
    const int64_t tokens = layout.tokens();
    return Ops().Forward({.shape = shape,
                          .layout = layout,
                          .qkv = ConstMatrix::OfBf16(qkv.data(), tokens, shape.qkv_cols()),
                          .out = MutableMatrix::OfBf16(out.data(), tokens, shape.out_cols()),
                          .lse = lse.data()});
  }
  absl::Status Backward() {
    const int64_t tokens = layout.tokens();
    return Ops().Backward({.shape = shape,
                           .layout = layout,
                           .qkv = ConstMatrix::OfBf16(qkv.data(), tokens, shape.qkv_cols()),
                           .out = ConstMatrix::OfBf16(out.data(), tokens, shape.out_cols()),
                           .dout = ConstMatrix::OfBf16(dout.data(), tokens, shape.out_cols()),
                           .lse = lse.data(),
                           .dqkv = MutableMatrix::OfBf16(dqkv.data(), tokens, shape.qkv_cols())});
  }
  absl::Status Rotate() {
    return Ops().Run(
        Rope{.shape = shape,
             .layout = layout,
             .qkv = MutableMatrix::OfBf16(qkv.data(), layout.tokens(), shape.qkv_cols())});
  }
  // FLOP of one matmul over the visible pairs of all heads.
  double ProductFlop() const {
    const double pairs = layout.length * (layout.length + 1) / 2.0;
    return 2.0 * layout.sequences * shape.heads * pairs * shape.head_dim;
  }

  AttentionShape shape;
  SequenceLayout layout;
  std::vector<uint16_t> qkv, dqkv, out, dout;
  std::vector<float> lse;
};

// `products`: the number of matmuls over the visible pairs of all heads.
template <class Run>
void Measure(benchmark::State& state, const Problem& problem, double products, Run&& run) {
  AgainstPanel(state, 128, 128, 128, products * problem.ProductFlop(), run);
}

void Forward(benchmark::State& state) {
  Problem problem(state);
  Measure(state, problem, 2, [&] { return problem.Forward(); });
}
void Backward(benchmark::State& state) {
  Problem problem(state);
  SkipUnlessOk(state, problem.Forward());
  Measure(state, problem, 5, [&] { return problem.Backward(); });
}
void RopeInPlace(benchmark::State& state) {
  Problem problem(state);
  // q and k are read and written, two bytes per element each time.
  const int64_t bytes = 4 * problem.layout.tokens() * problem.shape.head_dim *
                        (problem.shape.heads + problem.shape.kv_heads);
  AgainstMemcpy(state, Pool(), bytes, [&] { return problem.Rotate(); });
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"sequences", "length", "heads", "kv_heads", "head_dim"})
      ->Args({4, 512, 8, 8, 64})
      ->Args({2, 2048, 16, 8, 128})
      ->Args({8, 256, 4, 4, 32})
      ->UseManualTime()
      ->MinTime(0.5)
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(Forward)->Apply(Shapes);
BENCHMARK(Backward)->Apply(Shapes);
BENCHMARK(RopeInPlace)->Apply(Shapes);

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::RunPanelBench(argc, argv); }

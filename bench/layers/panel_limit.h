// The rate of packed matmuls, which is the limit of attention and the scan, measured alternately
// with them.
//
// Ownership: borrows the pool. Thread-safety: one measurement at a time.
#ifndef NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_
#define NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/alternate.h"
#include "bench/limits.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scratch.h"

namespace nibble::bench {

// BF16 matmuls [rows, depth] · [depth, cols] on all threads of a pool, each with its own operands,
// which stay in its cache.
class PanelRate {
 public:
  PanelRate(ThreadPool& pool, int rows, int cols, int depth)
      : pool_(pool), rows_(rows), cols_(cols), depth_(depth), operands_(pool.threads()) {
    const std::vector<uint16_t> ones(int64_t{std::max(rows, cols)} * depth, 0x3f80);
    for (Operands& own : operands_) {
      gemm_.pack_a({ones.data(), depth}, rows, depth, own.a.Get(cpu::PanelElements(rows, depth)));
      gemm_.pack_b({ones.data(), cols}, depth, cols, own.b.Get(cpu::PanelElements(cols, depth)));
      own.c.Get(int64_t{rows} * cols);
    }
  }

  // GFLOP/s of all threads together, over about a millisecond.
  double Run() {
    const int times = static_cast<int>(1e9 / flop()) + 1;
    const double seconds = Seconds([&] {
      pool_.ParallelFor(pool_.threads(), [&](int64_t i, int) {
        const cpu::PanelThreadScope scope;
        Operands& own = operands_[i];
        for (int time = 0; time < times; ++time) {
          cpu::PanelGemmFor<uint16_t>(cpu::BestPanelIsa())
              ->multiply(own.a.Get(0), own.b.Get(0), rows_, cols_, depth_, own.c.Get(0), cols_,
                         false);
        }
      });
    });
    return flop() * times * pool_.threads() / seconds / 1e9;
  }

 private:
  struct Operands {
    cpu::Scratch<uint16_t> a, b;
    cpu::Scratch<float> c;
  };
  double flop() const { return 2.0 * rows_ * cols_ * depth_; }

  ThreadPool& pool_;
  const cpu::PanelGemm<uint16_t>& gemm_ = *cpu::PanelGemmFor<uint16_t>(cpu::BestPanelIsa());
  const int rows_, cols_, depth_;
  std::vector<Operands> operands_;
};

// The pool of a benchmark whose limit is PanelRate.
inline ThreadPool& Pool() {
  static ThreadPool pool(0);
  return pool;
}

// Against packed matmuls [rows, depth] · [depth, cols]; `flop` counts the matmuls of the operation,
// and `run` returns its status. Counters: GFLOP/s, panel_GFLOP/s and of_panel, the ratio.
template <class Run>
Alternated AgainstPanel(benchmark::State& state, int rows, int cols, int depth, double flop,
                        Run&& run) {
  absl::Status status = run();
  PanelRate panel(Pool(), rows, cols, depth);
  const Alternated times = Alternate(
      state, [&] { return flop / panel.Run() / 1e9; },
      [&] { return Seconds([&] { status.Update(run()); }); });
  SkipUnlessOk(state, status);
  state.counters["GFLOP/s"] = flop / times.own / 1e9;
  state.counters["panel_GFLOP/s"] = flop / times.limit / 1e9;
  state.counters["of_panel"] = times.ratio;
  return times;
}

// The main() of such a benchmark.
inline int RunPanelBench(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("threads", std::to_string(Pool().threads()));
  benchmark::AddCustomContext("products", std::string(cpu::PanelIsaName(cpu::BestPanelIsa())));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_

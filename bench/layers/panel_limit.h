// The rate of packed matmuls, which is the limit of attention and the scan.
//
// Ownership: borrows the pool. Thread-safety: one measurement at a time.
#ifndef NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_
#define NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

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

// The median of a few runs.
inline double PanelLimit(ThreadPool& pool, int rows, int cols, int depth) {
  PanelRate rate(pool, rows, cols, depth);
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) rates.push_back(rate.Run());
  return Median(rates);
}

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_

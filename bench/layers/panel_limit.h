// The rate of the packed products that attention and the scan are made of: their limit.
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

// GFLOP/s of BF16 products [rows, depth] · [depth, cols] on all threads of the pool, each in
// operands of its own that stay in its cache.
inline double PanelLimit(ThreadPool& pool, int rows, int cols, int depth) {
  const cpu::PanelGemm<uint16_t>& gemm = cpu::BestPanelGemm<uint16_t>();
  const int64_t threads = pool.threads();
  const int times = static_cast<int>(4e9 / (2.0 * rows * cols * depth));
  const std::vector<uint16_t> source(int64_t{std::max(rows, cols)} * depth, 0x3f80);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    seconds.push_back(Seconds([&] {
      pool.ParallelFor(threads, [&](int64_t, int) {
        const cpu::PanelThreadScope scope;
        cpu::Scratch<uint16_t> a, b;
        cpu::Scratch<float> c;
        uint16_t* packed_a = a.Get(cpu::PanelElements(rows, depth));
        uint16_t* packed_b = b.Get(cpu::PanelElements(cols, depth));
        float* sums = c.Get(int64_t{rows} * cols);
        gemm.pack_a({source.data(), depth}, rows, depth, packed_a);
        gemm.pack_b({source.data(), cols}, depth, cols, packed_b);
        for (int time = 0; time < times; ++time) {
          gemm.multiply(packed_a, packed_b, rows, cols, depth, sums, cols, false);
        }
      });
    }));
  }
  return 2.0 * rows * cols * depth * times * static_cast<double>(threads) / Median(seconds) / 1e9;
}

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LAYERS_PANEL_LIMIT_H_

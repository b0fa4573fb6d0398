// Times an operation and memcpy of the same traffic alternately, so that a drift of the machine's
// speed affects both. Traffic counts the bytes that must be read and written at least once.
//
// Counters: GB/s of that traffic, memcpy_GB/s, and of_memcpy, the median over iterations of the
// ratio.
//
// Ownership: borrows the pool. Thread-safety: one measurement at a time.
#ifndef NIBBLE_BENCH_LAYERS_AGAINST_MEMCPY_H_
#define NIBBLE_BENCH_LAYERS_AGAINST_MEMCPY_H_

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "bench/limits.h"
#include "common/thread_pool.h"

namespace nibble::bench {

// `run` returns whether the operation was accepted.
template <class Run>
void AgainstMemcpy(benchmark::State& state, ThreadPool& pool, int64_t traffic, Run&& run) {
  CopyLimit limit(pool, traffic);
  limit.Run();
  if (!run()) state.SkipWithError("refused");
  std::vector<double> own, copy, ratio;
  for (auto _ : state) {
    copy.push_back(limit.Run());
    own.push_back(Seconds(run));
    ratio.push_back(copy.back() / own.back());
    state.SetIterationTime(own.back());
  }
  state.counters["GB/s"] = traffic / Median(own) / 1e9;
  state.counters["memcpy_GB/s"] = traffic / Median(copy) / 1e9;
  state.counters["of_memcpy"] = Median(ratio);
}

template <class Run>
void Register(const char* name, Run run) {
  benchmark::RegisterBenchmark(name, run)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.3);
}

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LAYERS_AGAINST_MEMCPY_H_

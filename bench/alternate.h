// Times an operation and its limit alternately, so that a drift of the machine's speed affects
// both. Figures are medians over the iterations.
//
// Ownership: borrows the pool. Thread-safety: one measurement at a time.
#ifndef NIBBLE_BENCH_ALTERNATE_H_
#define NIBBLE_BENCH_ALTERNATE_H_

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/limits.h"
#include "common/thread_pool.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::bench {

inline std::vector<uint16_t> RandomBf16(int64_t count, uint64_t seed, float mean = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = EncodeBf16(normal(random));
  return values;
}

inline void SkipUnlessOk(benchmark::State& state, const absl::Status& status) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

struct Alternated {
  double limit = 0, own = 0;  // seconds
  double ratio = 0;           // of the limit's time to the operation's
};

// `limit` and `own` run once and return their seconds.
template <class Limit, class Own>
Alternated Alternate(benchmark::State& state, Limit&& limit, Own&& own) {
  std::vector<double> limits, owns, ratios;
  for (auto _ : state) {
    limits.push_back(limit());
    owns.push_back(own());
    ratios.push_back(limits.back() / owns.back());
    state.SetIterationTime(owns.back());
  }
  return {Median(limits), Median(owns), Median(ratios)};
}

// Against memcpy of the same traffic: the bytes that must be read and written at least once.
// Counters: GB/s of that traffic, memcpy_GB/s, and of_memcpy, the ratio. `own` as in Alternate.
template <class Own>
Alternated AlternateWithMemcpy(benchmark::State& state, ThreadPool& pool, int64_t traffic,
                               Own&& own) {
  CopyLimit copy(pool, traffic);
  copy.Run();
  const Alternated times = Alternate(
      state, [&] { return copy.Run(); }, own);
  state.counters["GB/s"] = static_cast<double>(traffic) / times.own / 1e9;
  state.counters["memcpy_GB/s"] = static_cast<double>(traffic) / times.limit / 1e9;
  state.counters["of_memcpy"] = times.ratio;
  return times;
}

// As above; `run` returns the operation's status, and runs once before the measurement.
template <class Run>
Alternated AgainstMemcpy(benchmark::State& state, ThreadPool& pool, int64_t traffic, Run&& run) {
  absl::Status status = run();
  const Alternated times = AlternateWithMemcpy(
      state, pool, traffic, [&] { return Seconds([&] { status.Update(run()); }); });
  SkipUnlessOk(state, status);
  return times;
}

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_ALTERNATE_H_

// The limits that a machine sets, measured in the same run as what is held against them.
//
// Ownership: borrows the pool. Thread-safety: one measurement at a time.
#ifndef NIBBLE_BENCH_LIMITS_H_
#define NIBBLE_BENCH_LIMITS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/thread_pool.h"

namespace nibble::bench {

template <class Do>
double Seconds(Do&& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// memcpy on every thread of a pool: each byte read once and written once.
class CopyLimit {
 public:
  // Traffic counts both directions: half of it is read, half written.
  CopyLimit(ThreadPool& pool, int64_t traffic)
      : pool_(pool), from_(traffic / 2, 1), to_(traffic / 2, 2) {}

  double Run() {
    const int64_t parts = pool_.threads();
    const int64_t size = static_cast<int64_t>(from_.size()) / parts;
    return Seconds([&] {
      pool_.ParallelFor(parts, [&](int64_t i, int) {
        std::memcpy(to_.data() + i * size, from_.data() + i * size, size);
      });
    });
  }

 private:
  ThreadPool& pool_;
  std::vector<char> from_, to_;
};

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LIMITS_H_

// What a store counts about itself, as plain numbers that any exporter can carry on.
//
// Ownership: values. Thread-safety: that of values; a store hands out copies.
#ifndef NIBBLE_SERVER_STORE_STORE_METRICS_H_
#define NIBBLE_SERVER_STORE_STORE_METRICS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace nibble {

struct StoreHistogram {
  explicit StoreHistogram(std::vector<double> upper_bounds)
      : bounds(std::move(upper_bounds)), counts(bounds.size() + 1) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
    ++counts[static_cast<size_t>(bucket)];
    ++count;
    sum += value;
  }

  std::vector<double> bounds;    // ascending; a value that equals a bound lies below it
  std::vector<uint64_t> counts;  // [bounds + 1], each value in one; the last is above all bounds
  uint64_t count = 0;
  double sum = 0;
};

struct StoreMetrics {
  uint64_t commits = 0;          // batches that were acknowledged
  uint64_t failed = 0;           // batches that were taken and then failed
  uint64_t refused = 0;          // batches that were not taken
  uint64_t committed_bytes = 0;  // of their records, topics, keys and values
  uint64_t waiting = 0;          // batches that wait now
  uint64_t waiting_bytes = 0;
  // One synced write each: how many batches shared it, and how long it took, the sync included.
  StoreHistogram batches_per_write{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}};
  StoreHistogram write_seconds{
      {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}};
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_METRICS_H_

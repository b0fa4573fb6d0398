// Common parts of benchmarks: times, percentiles, verdicts, and the limits that a machine sets,
// measured in the same run as what is held against them.
//
// Ownership: borrows the pool; a ScratchDirectory owns its directory. Thread-safety: one
// measurement at a time.
#ifndef NIBBLE_BENCH_LIMITS_H_
#define NIBBLE_BENCH_LIMITS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_pool.h"

namespace nibble::bench {

inline double Since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class Do>
double Seconds(Do&& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return Since(start);
}

// 0 if there are no values.
double Percentile(std::vector<double> values, double percent);
inline double Median(std::vector<double> values) { return Percentile(std::move(values), 50); }

// "met" or "MISSED".
inline const char* Verdict(bool met) { return met ? "met" : "MISSED"; }

// The exit code of a benchmark that ended so; an error is printed.
int ExitCode(const absl::Status& status);

// A new directory below `parent`, removed by the destructor.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }  // empty: it could not be created

 private:
  std::string path_;
};

// Durable appends of 4 KiB per second in the directory, for about `seconds`: the rate of a journal
// without group commit.
double SyncRate(const std::string& directory, double seconds);

// memcpy on every thread of a pool: each byte read once and written once.
class CopyLimit {
 public:
  // Traffic counts both directions: half of it is read, half written.
  CopyLimit(ThreadPool& pool, int64_t traffic)
      : pool_(pool), from_(traffic / 2, 1), to_(traffic / 2, 2) {}

  double Run();  // seconds

 private:
  ThreadPool& pool_;
  std::vector<char> from_, to_;
};

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LIMITS_H_

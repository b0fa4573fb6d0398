// Makes the next batches on its own thread while the trainer works on the current one.
//
// Next() returns make(first), make(first + 1), … in this order: the thread affects when batches are
// made, never their content. A trainer numbers its micro-batches, e.g.
//
//   Prefetcher prefetcher([&](int64_t n) {
//     return builder.Build({.step = n / micros, …, .micro = n % micros, .micros = micros});
//   }, step * micros, 2);
//
// Ownership: owns its thread and the batches made ahead. The destructor waits for a running make()
// and drops batches that nobody took.
// Thread-safety: Next() may be called from any thread. `make` is called from the prefetcher's
// thread only, one call at a time.
#ifndef NIBBLE_WORKER_TRAINER_DATA_PREFETCHER_H_
#define NIBBLE_WORKER_TRAINER_DATA_PREFETCHER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "worker/trainer/data/batch.h"

namespace nibble {

class Prefetcher {
 public:
  using Make = std::function<absl::StatusOr<Batch>(int64_t number)>;

  // Keeps up to `depth` batches ready; less than 1 counts as 1. Starts at once with make(first).
  Prefetcher(Make make, int64_t first, int depth);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Waits for the next batch. An error of make() is returned in its place and by every later call;
  // nothing is made after it.
  absl::StatusOr<Batch> Next();

 private:
  void Run();

  const Make make_;
  const size_t depth_;

  // The standard library's: see common/thread_pool.h.
  std::mutex mutex_;
  std::condition_variable made_, taken_;
  // Guarded by mutex_.
  std::deque<absl::StatusOr<Batch>> ready_;  // an error is the last and is never removed
  int64_t next_number_;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_PREFETCHER_H_

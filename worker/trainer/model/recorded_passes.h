// Runs the passes of micro-batches from recordings, where the device's queue makes them: what a
// pass enqueues is the same in every step until the recipe changes, apart from what it reads in the
// device's memory (tokens, the step of the random bits). On a GPU a recording is a CUDA graph,
// which leaves shorter gaps between kernels.
//
// Ownership: borrows the queue; owns the recordings. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_RECORDED_PASSES_H_
#define NIBBLE_WORKER_TRAINER_MODEL_RECORDED_PASSES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/ops/queue.h"

namespace nibble {

class RecordedPasses {
 public:
  enum class Kind { kForward, kBackward };
  // All that a pass's arguments depend on.
  struct Key {
    Kind kind = Kind::kForward;
    int64_t micro = 0;  // the number of the micro-batch
    size_t slot = 0;    // of the buffers that hold its batch
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // A recording takes some megabytes: beyond this many passes the rest is enqueued each time.
  static constexpr size_t kMostRecordings = 32;

  explicit RecordedPasses(Queue& queue) : queue_(queue) {}

  // The first time `pass` is called, so that the device can prepare what it needs; the second time
  // it is recorded, and from then on the recording runs.
  absl::Status Run(const Key& key, absl::FunctionRef<absl::Status()> pass);
  // Passes are different from now on.
  void Clear() { passes_.clear(); }

  // Of passes that were recorded, for tests.
  int64_t replays() const { return replays_; }

 private:
  absl::Status Record(std::unique_ptr<Recording>& recording,
                      absl::FunctionRef<absl::Status()> pass);

  Queue& queue_;
  std::map<Key, std::unique_ptr<Recording>> passes_;  // null: run once, not recorded yet
  int64_t replays_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_RECORDED_PASSES_H_

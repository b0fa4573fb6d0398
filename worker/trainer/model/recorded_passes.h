// Runs the passes of micro-batches from recordings, if the device's queue can record: a pass
// enqueues the same operations in every step until the recipe changes, and reads the data that
// differ (tokens, the step of the random bits) in the device's memory. On a GPU a recording is a
// CUDA graph, which leaves shorter gaps between kernels.
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
  // Everything that the arguments of a pass depend on.
  struct Key {
    Kind kind = Kind::kForward;
    int64_t micro = 0;  // the number of the micro-batch
    size_t slot = 0;    // of the buffers that hold its batch
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // A recording takes some megabytes: passes beyond this number are enqueued each time.
  static constexpr size_t kMostRecordings = 32;

  explicit RecordedPasses(Queue& queue) : queue_(queue) {}

  // Calls `pass` the first time, so that the device can allocate and prepare; records it the second
  // time; afterwards enqueues the recording.
  absl::Status Run(const Key& key, absl::FunctionRef<absl::Status()> pass);
  // Forgets all recordings: passes are different from now on.
  void Clear() { passes_.clear(); }

  // The number of passes run from a recording; for tests.
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

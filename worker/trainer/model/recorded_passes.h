// Runs the passes of micro-batches from recordings, if the device's queue can record: a pass
// enqueues the same operations in every step until the recipe changes, and reads the data that
// differ (tokens, the step of the random bits) in the device's memory. So does what prepares the
// weights before the first micro-batch of a step. On a GPU a recording is a
// CUDA graph, which leaves shorter gaps between kernels.
//
// A recording can neither wait for another queue nor be waited for in its middle. A pass in which
// ranks exchange is therefore recorded in pieces, from one of its hooks to the next; the hooks are
// called each time, between the pieces.
//
// Ownership: borrows the queue and the hooks; owns the recordings. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_RECORDED_PASSES_H_
#define NIBBLE_WORKER_TRAINER_MODEL_RECORDED_PASSES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/ops/queue.h"
#include "worker/trainer/model/model.h"

namespace nibble {

// The hooks of the model whose passes it runs: passes them on to those given.
class RecordedPasses : public PassHooks {
 public:
  enum class Kind { kWeights, kForward, kBackward };
  // Everything that the arguments of a pass depend on.
  struct Key {
    Kind kind = Kind::kForward;
    int64_t micro = 0;     // the number of the micro-batch
    size_t slot = 0;       // of the buffers that hold its batch
    bool current = false;  // of weights: their working copies have been made already
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // A recording takes some megabytes: passes beyond this number are enqueued each time.
  static constexpr size_t kMostRecordings = 32;

  RecordedPasses(Queue& queue, PassHooks& hooks) : queue_(queue), hooks_(hooks) {}

  // Calls `pass` the first time, so that the device can allocate and prepare; records it the second
  // time; afterwards enqueues the recording. `exchanges`: hooks enqueue work during the pass;
  // otherwise they are not called once it is recorded. Hooks that enqueue work free no memory of
  // the device once they have been called for this pass.
  absl::Status Run(const Key& key, bool exchanges, absl::FunctionRef<absl::Status()> pass);
  // Forgets all recordings: passes are different from now on.
  void Clear() { passes_.clear(); }

  // The number of passes run from a recording; for tests.
  int64_t replays() const { return replays_; }

  absl::Status BeforeForward(int64_t part) override {
    return Call({&PassHooks::BeforeForward, part});
  }
  absl::Status BeforeBackward(int64_t part) override {
    return Call({&PassHooks::BeforeBackward, part});
  }
  absl::Status AfterBackward(int64_t part) override {
    return Call({&PassHooks::AfterBackward, part});
  }

 private:
  struct Hook {
    absl::Status (PassHooks::*call)(int64_t part);
    int64_t part;
  };
  struct Pass {
    // None: run once, not recorded yet. Null: nothing is enqueued there.
    std::vector<std::unique_ptr<Recording>> pieces;
    std::vector<Hook> hooks;  // after each piece but the last
  };

  // A hook of the pass that runs.
  absl::Status Call(const Hook& hook);
  absl::Status Record(bool exchanges, absl::FunctionRef<absl::Status()> pass, Pass& recorded);
  // What has been recorded is a piece of the pass.
  absl::Status EndPiece();
  absl::Status RunPiece(const Pass& pass, size_t piece);

  Queue& queue_;
  PassHooks& hooks_;
  std::map<Key, Pass> passes_;
  Pass* recorded_ = nullptr;  // what is being recorded
  bool divides_ = false;      // hooks end its pieces
  bool in_piece_ = false;
  int64_t replays_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_RECORDED_PASSES_H_

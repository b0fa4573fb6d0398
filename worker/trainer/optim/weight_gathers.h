// Gathers the weights of each bucket for the passes of the model, if they take turns in the slots
// of Parameters (ZeRO-3): a rank stores its part of them, and the whole of two adjacent buckets at
// a time. While one bucket is computed with, the next one of the pass arrives.
//
// A bucket that is still in its slot is not gathered again: where the passes turn, the last two
// are, and the embedding of a tied head always is.
//
// Ownership: borrows device, parameters, optimizer and collective. Thread-safety: none; every rank
// makes the same calls in the same order.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/optim/sharded_adamw.h"

namespace nibble {

class WeightGathers {
 public:
  static absl::StatusOr<std::unique_ptr<WeightGathers>> Create(const Device& device,
                                                               const Parameters& parameters,
                                                               const ShardedAdamW& optimizer,
                                                               Collective& collective);

  // The weights have changed: what is in the slots is stale.
  void Forget();
  // Before part `part` of a forward or backward pass (see PassHooks) reads its weights: computation
  // enqueued afterwards finds them in their slots. A backward pass does not read the embedding.
  absl::Status BeforeForward(int64_t part);
  absl::Status BeforeBackward(int64_t part);

  // The number of gathers so far, and the bytes that this rank sent to each other one.
  int64_t gathers() const { return gathers_; }
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Slot {
    int64_t bucket = -1;  // that is there, or arriving; -1: none
    std::unique_ptr<Event> left, arrived;
  };

  WeightGathers(const Device& device, const Parameters& parameters, const ShardedAdamW& optimizer,
                Collective& collective)
      : device_(device), parameters_(parameters), optimizer_(optimizer), collective_(collective) {}

  // Begins to gather a bucket, unless it is there. Everything enqueued so far may still read its
  // slot.
  absl::Status Begin(int64_t bucket);
  // Computation waits for `bucket`; begins to gather `next`, if there is one.
  absl::Status Use(int64_t bucket, int64_t next);

  Device device_;
  const Parameters& parameters_;
  const ShardedAdamW& optimizer_;
  Collective& collective_;
  std::vector<int64_t> bucket_of_part_;  // [blocks + 2], from the embedding on
  int64_t first_of_backward_ = 0;        // the first bucket that backward passes read
  std::array<Slot, Parameters::kSlots> slots_;
  int64_t gathers_ = 0, bytes_sent_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_

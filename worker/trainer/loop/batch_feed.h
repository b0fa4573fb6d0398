// Brings micro-batches to the device, from pinned memory, into two slots in turn: the host fills
// one while the other is computed. The copies, of a few hundred kilobytes, are in the queue of the
// computation: transfers() may copy a snapshot of the run for longer than a step.
//
// Ownership: borrows the backend; owns the slots. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_BATCH_FEED_H_
#define NIBBLE_WORKER_TRAINER_LOOP_BATCH_FEED_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "worker/trainer/data/batch.h"

namespace nibble {

// On the device. [tokens] each.
struct FedBatch {
  const int32_t* tokens = nullptr;
  const int32_t* targets = nullptr;
  const int32_t* doc_begin = nullptr;
  const uint64_t* step = nullptr;  // one number
  size_t slot = 0;                 // 0 or 1; batches of a slot are at the same addresses
};

class BatchFeed {
 public:
  // For batches of `tokens` tokens.
  static absl::StatusOr<std::unique_ptr<BatchFeed>> Create(Backend& backend, int64_t tokens);

  // Enqueues the copy; what is computed after the call has the batch. Waits for the copy of the
  // batch before the last.
  absl::StatusOr<FedBatch> Load(int64_t step, const Batch& batch);

 private:
  struct Slot {
    Buffer device, pinned;  // the step, uint64; [3, tokens] int32
    std::unique_ptr<Event> copied;
  };

  BatchFeed(Backend& backend, int64_t tokens) : backend_(backend), tokens_(tokens) {}

  Backend& backend_;
  const int64_t tokens_;
  std::array<Slot, 2> slots_;
  size_t last_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_BATCH_FEED_H_

// The stores of several ranks, or of several nodes, read as one: each holds the shards of its own
// ranks, and a checkpoint is what the first of them, the one that decides, has committed. Shards
// are found wherever they are, so a world of any size loads what another has saved, and a copy of a
// shard in another store serves as well as the shard.
//
// Ownership: borrows the stores. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_SET_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_SET_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

class CheckpointSet {
 public:
  // InvalidArgument for no stores, FailedPrecondition where they are not all of one identity.
  static absl::StatusOr<CheckpointSet> Create(std::vector<const CheckpointStore*> stores);

  // As those of CheckpointStore, over all shards.
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> OpenCheckpoint(int64_t step) const;
  absl::StatusOr<GoodCheckpoint> LatestGood() const;

 private:
  explicit CheckpointSet(std::vector<const CheckpointStore*> stores)
      : stores_(std::move(stores)) {}
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> Open(
      const StoredDirectory& directory) const;

  std::vector<const CheckpointStore*> stores_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_SET_H_

// What the server of a rank's link (worker/link) calls with the checkpoint part of the link, and
// CheckpointHost implements. Per rank:
//
//   Offer       the rank's memory, once
//   Snapshot …  the memory has the state of a step; answered by one SnapshotOutcome each, in order
//   Leave       the rank is gone; its snapshots are still written
//
// The memory belongs to the rank until Snapshot and to the sink until the outcome.
//
// Thread-safety: all methods from any thread; they wait for no disk and no peer.
#ifndef NIBBLE_WORKER_CHECKPOINT_SNAPSHOT_SINK_H_
#define NIBBLE_WORKER_CHECKPOINT_SNAPSHOT_SINK_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace nibble {

struct SnapshotOutcome {
  int64_t step = 0;
  absl::Status status;       // stored, or why not
  int64_t deleted = 0;       // checkpoints that retention removed
  double write_seconds = 0;  // from the last rank's snapshot to the commit
  bool direct = true;        // written past the page cache; false is slower
};

class SnapshotSink {
 public:
  // Called from any thread with no lock taken, also after the rank and its link have ended; does
  // not wait.
  using Reply = std::function<void(const SnapshotOutcome&)>;

  virtual ~SnapshotSink() = default;

  // Takes over the descriptor of a SnapshotArea, also on error. InvalidArgument for memory that is
  // not one; AlreadyExists while an earlier memory of the rank is in use.
  virtual absl::Status Offer(int32_t rank, int descriptor, Reply reply) = 0;
  // After an Offer that was OK. `note_bytes`: of the encoded CheckpointHeader in the area.
  virtual void Snapshot(int32_t rank, int64_t step, int64_t note_bytes) = 0;
  // After an Offer that was OK.
  virtual void Leave(int32_t rank) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SNAPSHOT_SINK_H_

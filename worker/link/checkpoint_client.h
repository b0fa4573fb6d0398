// The rank side of checkpoints. Training waits only for one copy of the rank's state into shared
// memory (SnapshotArea), which is announced over the rank's link; the other side then reads the
// memory and writes the checkpoint.
//
// Ownership: owns its area; borrows the link. Thread-safety: one thread, the link's.
#ifndef NIBBLE_WORKER_LINK_CHECKPOINT_CLIENT_H_
#define NIBBLE_WORKER_LINK_CHECKPOINT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/snapshot_area.h"
#include "worker/link/rank_link.h"

namespace nibble {

class CheckpointClient {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic
  // Fills the buffers, or begins to: buffers[i] gets the bytes of slice i.
  using Copy = absl::FunctionRef<absl::Status(absl::Span<const absl::Span<std::byte>> buffers)>;
  // Whether a copy that was begun has ended. With `wait`, returns once it has.
  using Ended = std::function<absl::StatusOr<bool>(bool wait)>;

  struct Outcome {
    int64_t step = 0;
    absl::Status status;
    int64_t bytes = 0;         // of this rank
    int64_t deleted = 0;       // checkpoints that retention removed
    double stall_seconds = 0;  // time that training waited for the copy
    double write_seconds = 0;  // from the last rank's snapshot to the commit
    bool direct = true;        // false: some writes went through the page cache, which is slower
  };

  // ResourceExhausted without enough memory; otherwise any error of the link or of the other side.
  static absl::StatusOr<std::unique_ptr<CheckpointClient>> Create(RankLink& link,
                                                                  std::vector<TensorSlice> slices,
                                                                  Clock clock);
  CheckpointClient(const CheckpointClient&) = delete;
  CheckpointClient& operator=(const CheckpointClient&) = delete;

  // Copies the state, and returns while the other side writes it. A copy that only begins here,
  // beside the training, is announced to the other side by the first Poll() or Wait() after its
  // end. One checkpoint at a time: FailedPrecondition, naming the step, while another is in flight,
  // and the caller decides whether to retry at a later step or to wait. After an error of `copy`
  // nothing is in flight. All ranks take the same steps, with equal headers.
  absl::Status Snapshot(const CheckpointHeader& header, Copy copy, Ended ended = {});
  // The memory that copies are made to, in whole pages.
  absl::Span<std::byte> memory() const { return area_->memory(); }

  // The step being written.
  std::optional<int64_t> in_flight() const { return in_flight_; }
  // The outcome once it is known, nullopt before. A lost link is an outcome, too.
  std::optional<Outcome> Poll();
  // Waits for the outcome; nullopt if nothing is in flight.
  std::optional<Outcome> Wait();

 private:
  CheckpointClient(RankLink& link, std::unique_ptr<SnapshotArea> area, Clock clock)
      : link_(link), area_(std::move(area)), clock_(std::move(clock)) {}
  Outcome OutcomeOf(const link::v1::CheckpointOutcome& message);
  // Announces the copy if it has ended. False: it has not.
  absl::StatusOr<bool> Announce(bool wait);
  // The outcome of a checkpoint that was never announced.
  Outcome NoOutcome(const absl::Status& why);

  RankLink& link_;
  const std::unique_ptr<SnapshotArea> area_;
  const Clock clock_;
  std::optional<int64_t> in_flight_;
  Ended ended_;  // of the copy in flight; null: it was announced
  int64_t note_bytes_ = 0;
  double stall_seconds_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_CHECKPOINT_CLIENT_H_

// A rank's side of its checkpoints: what training waits for is one copy of the rank's state into
// memory that it shares with a CheckpointHost, which stores it.
//
// One at a time: while one is being stored the next is refused, and training decides whether to try
// again at a later step or to wait.
//
// Ownership: owns the memory and the connection. Thread-safety: one thread.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_GUEST_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_GUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/snapshot_area.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {

class CheckpointGuest {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic
  // Fills the buffers: buffers[i] has the bytes of slice i.
  using Copy = absl::FunctionRef<absl::Status(absl::Span<const absl::Span<std::byte>> buffers)>;

  struct Options {
    std::string address;  // CheckpointHost::address()
    int32_t rank = 0;
    int64_t attempt = 1;
    std::vector<TensorSlice> slices;
    Clock clock;
  };

  struct Outcome {
    int64_t step = 0;
    absl::Status status;
    int64_t bytes = 0;  // of this rank
    int64_t deleted = 0;
    double stall_seconds = 0;  // training waited: the copy
    double write_seconds = 0;  // from the last rank's snapshot until it was committed
    bool direct = true;
  };

  // ResourceExhausted where there is no memory; Unavailable where there is no host; Aborted for a
  // stale attempt, and what else the host says.
  static absl::StatusOr<std::unique_ptr<CheckpointGuest>> Connect(Options options);
  ~CheckpointGuest();
  CheckpointGuest(const CheckpointGuest&) = delete;
  CheckpointGuest& operator=(const CheckpointGuest&) = delete;

  // Copies, and returns while the rest goes on. FailedPrecondition, naming the step, while another
  // is in flight; the copy's own error, and then there is nothing in flight. All ranks take the
  // same steps, with headers that are equal.
  absl::Status Snapshot(const CheckpointHeader& header, Copy copy);

  // The step being stored.
  std::optional<int64_t> in_flight() const { return in_flight_; }
  // What became of it, once that is known. A host that is gone is an outcome, too.
  std::optional<Outcome> Poll() { return Receive(false); }
  // Waits for it; nullopt if nothing is in flight.
  std::optional<Outcome> Wait() { return Receive(true); }

 private:
  CheckpointGuest(Options options, std::unique_ptr<SnapshotArea> area, int socket)
      : options_(std::move(options)), area_(std::move(area)), socket_(socket) {}
  std::optional<Outcome> Receive(bool wait);

  const Options options_;
  const std::unique_ptr<SnapshotArea> area_;
  const int socket_;
  std::optional<int64_t> in_flight_;
  double stall_seconds_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_GUEST_H_

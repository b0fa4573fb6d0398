// When a run takes checkpoints, and their outcomes.
//
// Ownership: CheckpointTaker owns the rank's checkpoint memory and borrows the rest. Thread-safety:
// one thread; DecideCheckpoint is pure.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_CHECKPOINT_TAKER_H_
#define NIBBLE_WORKER_TRAINER_LOOP_CHECKPOINT_TAKER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "job/job_spec.h"
#include "kernels/ops/backend.h"
#include "worker/link/checkpoint_client.h"
#include "worker/trainer/loop/rank_status.h"
#include "worker/trainer/loop/run_model.h"
#include "worker/trainer/loop/run_reporter.h"

namespace nibble {

// At a boundary between two steps; equal on all ranks.
struct CheckpointMoment {
  int64_t next_step = 0;
  int64_t taken_step = -1;       // of the newest checkpoint begun or resumed from
  int64_t every = 0;             // checkpoints.every; 0: never
  bool due = false;              // one was due before and had to wait, or was requested
  bool storing = false;          // some rank is still storing its last one
  int64_t skipped_in_a_row = 0;  // steps without an update up to the last one
};

enum class CheckpointDecision { kNone, kLater, kNow };

// A checkpoint that is due too early waits for a later boundary. So does one after a skipped step:
// a run that skips every step keeps its good checkpoints.
CheckpointDecision DecideCheckpoint(const CheckpointMoment& moment);

class CheckpointTaker {
 public:
  struct Options {
    const JobSpec& spec;
    int64_t attempt = 1;
    RunModel& model;
    RunReporter& reporter;
    RankStatus& status;
    std::unique_ptr<CheckpointClient> client;  // null: none are taken
    PinnedRange pinned;                        // the client's memory
    int64_t resumed_step = -1;
  };
  explicit CheckpointTaker(Options options);

  struct Summary {
    int64_t failed = 0;
    int64_t last_step = -1;  // of the newest one stored
    absl::Status status;     // of the last one attempted
  };
  const Summary& summary() const { return summary_; }

  // Handles the outcome of the checkpoint in flight, if it is known.
  void Poll();
  // Waits for it.
  void Wait();
  bool in_flight() const { return client_ != nullptr && client_->in_flight().has_value(); }

  // The greatest request at a boundary; a greater one than before makes a checkpoint due.
  void Request(int64_t number);
  // Takes a checkpoint of the next step if one is due. An error, other than of the link, ends the
  // run: the state cannot be read.
  absl::Status TakeIfDue(bool storing);
  // After the last step: waits for the checkpoint in flight, and takes the final one if the spec
  // has one, or `requested`.
  absl::Status Finish(bool requested);

 private:
  absl::Status Take();
  void Handle(const CheckpointClient::Outcome& outcome);

  const JobSpec& spec_;
  const int64_t attempt_;
  Trainer& trainer_;
  RunState& state_;
  RunReporter& reporter_;
  RankStatus& status_;
  const std::unique_ptr<CheckpointClient> client_;
  const PinnedRange pinned_;  // after client_: unpinned before the memory goes
  bool due_ = false;
  int64_t requested_ = 0;  // the greatest request
  int64_t answered_ = 0;   // the request that the checkpoint in flight answers
  int64_t taken_step_;     // of the newest checkpoint begun or resumed from
  Summary summary_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_CHECKPOINT_TAKER_H_

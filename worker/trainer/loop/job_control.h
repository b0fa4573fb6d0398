// The agreement of a job's ranks between two steps: whether to stop, to pause or to take a
// checkpoint, and which recipe timeline is in effect. Rank 0 receives requests from its daemon, if
// there is one; any rank may receive a signal to stop.
//
// The agreement is one exchange of a few words, which go with the numbers of the step before: Ask()
// gives a rank's words, Hear() takes those of all. Only a boundary without such words, the first
// one or one in a pause, has an exchange of its own. If the timeline has changed, its bytes follow
// in further exchanges, so that all ranks adopt it at the same step.
//
// While a JobControl exists, the link's page names the collective that this rank is in.
//
// Ownership: borrows the collective, whose observer it is, the stop flag and the link.
// Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_
#define NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/step_ops.h"
#include "recipe/timeline.h"
#include "worker/link/rank_link.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

class JobControl {
 public:
  // The agreement; equal on all ranks.
  struct Boundary {
    bool stop = false;
    bool last_checkpoint = false;    // if stop: take a checkpoint, whatever the spec requests
    bool pause = false;              // do not step before a later boundary
    bool storing = false;            // some rank is still storing its last checkpoint
    int64_t checkpoint_request = 0;  // a checkpoint is due when this has increased
    // A newly offered timeline, or why it is invalid.
    std::optional<absl::StatusOr<Timeline>> timeline;
    int64_t revision = 0;  // the latest revision offered
  };

  // Without a link (null) there are no commands.
  JobControl(Collective& collective, const std::atomic<bool>& stop, RankLink* link);
  ~JobControl();
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;

  // This rank's words for the next boundary. Agree() returns errors of the link.
  HostWords Ask(bool storing);
  // The words of every rank, by rank; the next Agree() uses them.
  void Hear(std::vector<HostWords> said) { heard_ = std::move(said); }
  // All ranks call it together. `patience`: how long rank 0 may wait for a new message from its
  // daemon while the job is paused.
  absl::StatusOr<Boundary> Agree(bool storing, std::chrono::milliseconds patience = {});

  // Shares every rank's outcome of the same attempt; all ranks call it together. Empty: all
  // succeeded. Otherwise the error of the first rank that failed.
  absl::StatusOr<std::string> AgreeOn(const absl::Status& outcome);

 private:
  class Observer;

  // Reads the daemon's commands; returns this rank's words.
  absl::StatusOr<HostWords> Say(bool storing, std::chrono::milliseconds patience);
  // Broadcasts rank 0's `text`, of `bytes` bytes.
  absl::StatusOr<std::string> Share(const std::string& text, int64_t bytes);

  Collective& collective_;
  const std::atomic<bool>& stop_;
  RankLink* const link_;                      // may be null
  const std::unique_ptr<Observer> observer_;  // null: no link
  int64_t revision_ = 0;                      // the latest revision of the timeline shared last
  absl::Status asked_;                        // of the last Ask()
  std::string timeline_;                      // on rank 0: what its last words offer
  std::vector<HostWords> heard_;              // by rank; empty: nothing since the last Agree()
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_

// The agreement of a job's ranks between two steps: whether to stop, to pause or to take a
// checkpoint, and which recipe timeline is in effect. Rank 0 receives requests from its daemon, if
// there is one; any rank may receive a signal to stop.
//
// The agreement is one exchange of a few words; if the timeline has changed, its text follows in
// further exchanges, so that all ranks adopt it at the same step.
//
// While a JobControl exists, the daemon can see which collective this rank is in.
//
// Ownership: borrows the collective, whose observer it is, and the stop flag; owns the link.
// Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_
#define NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "recipe/timeline.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/link/daemon_link.h"

namespace nibble {

// The timeline that a run continues with, given the one in effect for the steps before `next_step`
// and the one offered. Revisions that have begun are unchanged; new ones take effect at their
// offered step, or at `next_step` if that has passed; those that have not begun and are no longer
// offered are removed. A revision refused in either timeline stays refused. Only the last two
// revisions that have begun are kept, the first of them with step 0, so that checkpoints do not
// grow with the history, which the coordinator stores. InvalidArgument if the result is not a valid
// timeline.
absl::StatusOr<Timeline> AdoptTimeline(const Timeline& run, const Timeline& offered,
                                       int64_t next_step);

class JobControl {
 public:
  // The agreement; equal on all ranks.
  struct Boundary {
    bool stop = false;
    bool last_checkpoint = false;    // if stop: take a checkpoint, whatever the spec says
    bool pause = false;              // do not step before a later boundary
    bool storing = false;            // some rank is still storing its last checkpoint
    int64_t checkpoint_request = 0;  // a checkpoint is due when this has increased
    // A newly offered timeline, or why it is invalid.
    std::optional<absl::StatusOr<Timeline>> timeline;
    int64_t revision = 0;  // the latest revision offered
  };

  // `daemon` is LinkHost::address(), empty if there is none. Waits for the daemon's first message,
  // so that its requests apply from the first step: DeadlineExceeded after half a minute.
  static absl::StatusOr<std::unique_ptr<JobControl>> Create(Collective& collective,
                                                            const std::atomic<bool>& stop,
                                                            const std::string& daemon,
                                                            int64_t attempt);
  ~JobControl();
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;

  // All ranks call it together. `patience`: how long rank 0 may wait for a new message from its
  // daemon while the job is paused.
  absl::StatusOr<Boundary> Agree(bool storing, std::chrono::milliseconds patience = {});

  // Shares every rank's outcome of the same attempt; all ranks call it together. Empty: all
  // succeeded. Otherwise the error of the first rank that failed.
  absl::StatusOr<std::string> AgreeOn(const absl::Status& outcome);

  bool has_daemon() const { return link_ != nullptr; }
  void Report(const RankNews& news) {
    if (link_ != nullptr) link_->Report(news);
  }

 private:
  class Whereabouts;

  JobControl(Collective& collective, const std::atomic<bool>& stop);

  // Broadcasts rank 0's `text`, of `bytes` bytes.
  absl::StatusOr<std::string> Share(const std::string& text, int64_t bytes);

  Collective& collective_;
  const std::atomic<bool>& stop_;
  std::unique_ptr<Whereabouts> whereabouts_;  // shown to the daemon; null: no daemon
  std::unique_ptr<DaemonLink> link_;
  int64_t revision_ = 0;  // the latest revision of the timeline shared last
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_

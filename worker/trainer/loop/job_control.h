// What the ranks of a job agree on between two steps: whether to stop, to stand still or to take a
// checkpoint, and which recipe timeline holds from here on. Rank 0 hears it from its daemon, where
// there is one; every rank may be asked to stop by a signal.
//
// The agreement is one exchange of a few words; where the timeline has grown its text follows in
// further ones, so that all ranks take it up at the same step.
//
// While it lives, the daemon sees in which collective this rank stands.
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

// The timeline that a run goes on with, given the one it has run under up to `next_step`, not
// included, and the one that it is offered. What has begun keeps its step, to the letter; what is
// new holds from the step it is offered with, or from `next_step` where that is over; what has not
// begun and is not offered any more goes. What either of them has refused stays refused. Of a long
// history the last two revisions are kept, of which the first then holds from step 0: the rest is
// the coordinator's to remember, and checkpoints do not grow with it.
// InvalidArgument where no timeline comes of it.
absl::StatusOr<Timeline> AdoptTimeline(const Timeline& run, const Timeline& offered,
                                       int64_t next_step);

class JobControl {
 public:
  // What all ranks know alike.
  struct Boundary {
    bool stop = false;
    bool last_checkpoint = false;    // of a stop: with a checkpoint, whatever the spec says
    bool pause = false;              // stand until a later boundary
    bool storing = false;            // some rank's last checkpoint is still on its way
    int64_t checkpoint_request = 0;  // a checkpoint is due where this has grown
    // Offered, and not seen before; or why what was offered is no timeline.
    std::optional<absl::StatusOr<Timeline>> timeline;
    int64_t revision = 0;  // the latest of what was offered
  };

  // `daemon` is LinkHost::address(), empty where there is none. With one, waits until the daemon
  // has said what it wants, so that the first step is already made under it: DeadlineExceeded after
  // half a minute.
  static absl::StatusOr<std::unique_ptr<JobControl>> Create(Collective& collective,
                                                            const std::atomic<bool>& stop,
                                                            const std::string& daemon,
                                                            int64_t attempt);
  ~JobControl();
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;

  // All ranks call it together. `patience`: how long rank 0 may wait for its daemon to say
  // something new, for ranks that stand.
  absl::StatusOr<Boundary> Agree(bool storing, std::chrono::milliseconds patience = {});

  // Whether every rank could do what all of them have tried, each with its own outcome; all ranks
  // call it together. Empty: they could. Else why the first rank that could not did not.
  absl::StatusOr<std::string> AgreeOn(const absl::Status& outcome);

  bool has_daemon() const { return link_ != nullptr; }
  void Report(const RankNews& news) {
    if (link_ != nullptr) link_->Report(news);
  }

 private:
  class Whereabouts;

  JobControl(Collective& collective, const std::atomic<bool>& stop);

  // Rank 0 has `text`; every rank gets it.
  absl::StatusOr<std::string> Share(const std::string& text, int64_t bytes);

  Collective& collective_;
  const std::atomic<bool>& stop_;
  std::unique_ptr<Whereabouts> whereabouts_;  // that the daemon sees; null: there is none
  std::unique_ptr<DaemonLink> link_;
  int64_t revision_ = 0;  // the latest of the timeline that was shared last
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_JOB_CONTROL_H_

// Changes of a run's recipe: the revisions that its daemon offers, and their preparation on all
// ranks between two steps. A revision takes effect on all ranks or on none: if a rank cannot
// prepare it, it is refused, the previous one stays in effect and training continues.
//
// Ownership: RecipeSwitch borrows everything. Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RECIPE_SWITCH_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RECIPE_SWITCH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "recipe/timeline.h"
#include "worker/trainer/loop/job_control.h"
#include "worker/trainer/loop/rank_status.h"
#include "worker/trainer/loop/run_reporter.h"
#include "worker/trainer/loop/trainer.h"

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

class RecipeSwitch {
 public:
  RecipeSwitch(const JobSpec& spec, Trainer& trainer, JobControl& control, RunReporter& reporter,
               RankStatus& status)
      : spec_(spec), trainer_(trainer), control_(control), reporter_(reporter), status_(status) {}

  // Adopts the timeline offered at a boundary, if there is one; refuses revisions that the trainer
  // cannot run.
  void Adopt(const JobControl::Boundary& boundary);
  // Puts the recipe of the next step in effect; all ranks call it together. If a rank cannot
  // prepare it, promotions that begin with it are withdrawn first, then its revision is refused. An
  // error if that has begun, or is the first one.
  absl::Status Prepare();
  // Before a step: reports its revision to the daemon if it is a new one.
  void Begin();

 private:
  void Refuse(int64_t revision, const std::string& reason);
  // Reports the refusal to the event log, the progress output and the daemon.
  void ReportRefusal(int64_t revision, const std::string& reason);
  int64_t NextStep() const;  // or the last one after it
  const Revision& Next() const { return trainer_.timeline().At(NextStep()); }

  const JobSpec& spec_;
  Trainer& trainer_;
  JobControl& control_;
  RunReporter& reporter_;
  RankStatus& status_;
  int64_t prepared_ = 0;               // revision that all ranks have in effect; 0: not agreed yet
  std::vector<std::string> promoted_;  // layers, with it
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RECIPE_SWITCH_H_

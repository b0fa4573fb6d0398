// A whole training run of one rank: data, steps, validation, events, progress. Only rank 0 writes
// the event log and shows progress.
//
// Ownership: borrows spec and collective. Thread-safety: one run per process at a time; `stop` may
// be set from a signal handler or another thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_JOB_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_JOB_H_

#include <atomic>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/link/rank_link.h"
#include "worker/link/waiting_page.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/loop/train_device.h"

namespace nibble {

// Where a run's checkpoints are loaded from; see worker/checkpoint.
struct RunCheckpoints {
  int64_t attempt = 1;       // this launch's number
  std::string store;         // the store of `resume_step`
  int64_t resume_step = -1;  // the checkpoint to resume from; -1: begin at the first step
  // The checkpoint is another job's and only its weights are loaded: begin at the first step.
  bool weights_only = false;
  // Notices from opening the store, for the event log.
  std::vector<std::string> notices;
};

// A trace of some steps, written to a file that the ranks of a machine share.
struct RunTraceOptions {
  std::string path;   // empty: none
  int64_t after = 2;  // steps of this run before the first traced one
  int64_t steps = 2;
};

struct RunOptions {
  // Set to stop after the current step; all ranks stop at the same step. Not null.
  const std::atomic<bool>* stop = nullptr;
  // Makes the rank's device.
  DeviceFactory device = MakeDevice;
  int local_rank = 0;  // this rank's number on its node
  // Joins another group of the ranks' processes. Null: there is one rank, or their devices need no
  // other group.
  HostJoiner join = nullptr;
  // Progress output of rank 0; null: none.
  std::ostream* progress = nullptr;
  bool terminal = false;  // progress is a terminal
  RunCheckpoints checkpoints;
  // LinkHost::address() of the process that serves this rank, passes commands on and stores its
  // checkpoints. Empty: none; no checkpoints are taken.
  std::string link;
  // Takes over the link, if there was one, when the run has ended and everything of it is gone.
  // Null: the link ends with the run.
  std::unique_ptr<RankLink>* link_after = nullptr;
  // Set to the link's page once it is connected, for the groups of this run, which end before it.
  std::atomic<WaitingPage*>* page = nullptr;
  RunTraceOptions trace;
  // This rank prepares the data for the ranks of its node.
  bool prepares_data = true;
};

struct RunSummary {
  int64_t steps = 0;  // completed
  int64_t skipped_steps = 0;
  int64_t failed_checkpoints = 0;
  int64_t last_checkpoint = -1;  // step of the newest one stored
  double loss = 0;               // of the last step
  std::string reason;            // "completed", "early_stop", "stopped"
  // Outcome of the last checkpoint attempted; if not OK, the steps since the one before are not
  // saved.
  absl::Status checkpoint_status;
};

// `spec` is valid and has hosts->world() ranks; `hosts` is the collective of their processes.
// Writes to OutputDirectory(spec). Training errors are also written to the event log.
absl::StatusOr<RunSummary> RunJob(const JobSpec& spec, std::unique_ptr<Collective> hosts,
                                  const RunOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_JOB_H_

// A whole training run of one rank: data, steps, validation, events, progress. Rank 0 speaks for
// all: it alone writes the event log and shows progress.
//
// Ownership: owns what it makes. Thread-safety: one run per process at a time; `stop` may be set
// from a signal handler or another thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_JOB_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_JOB_H_

#include <atomic>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

// Where a run's checkpoints go and come from; see worker/checkpoint.
struct RunCheckpoints {
  std::string host;          // CheckpointHost::address(); empty: none are taken
  int64_t attempt = 1;       // this launch's number
  std::string store;         // where `resume_step` is read
  int64_t resume_step = -1;  // the checkpoint to begin from; -1: the first step
  // It is another job's, of which only the weights are taken: the run begins at the first step.
  bool weights_only = false;
  // What whoever opened the store has to say, for the event log.
  std::vector<std::string> notices;
};

struct RunOptions {
  // Set to stop after the step that runs; all ranks stop at the same one. Not null.
  const std::atomic<bool>* stop = nullptr;
  // Where progress goes, on rank 0; null: nowhere.
  std::ostream* progress = nullptr;
  bool terminal = false;  // progress is one
  RunCheckpoints checkpoints;
  std::string daemon_link;  // LinkHost::address(); empty: there is no daemon
  // This rank makes the data that the ranks of its node read.
  bool prepares_data = true;
};

struct RunSummary {
  int64_t steps = 0;  // done
  int64_t skipped_steps = 0;
  int64_t failed_checkpoints = 0;
  int64_t last_checkpoint = -1;  // step of the newest one stored
  double loss = 0;               // of the last step
  std::string reason;            // "completed", "early_stop", "stopped"
  // Of the last checkpoint that was wanted: what it was for is lost where this is not OK.
  absl::Status checkpoint_status;
};

// `spec` is valid and of collective.world() ranks. Writes to OutputDirectory(spec). An error of
// training is in the event log, too.
absl::StatusOr<RunSummary> RunJob(const JobSpec& spec, Collective& collective,
                                  const RunOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_JOB_H_

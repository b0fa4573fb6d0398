// One rank's training run, the implementation of RunJob(). The class is divided by responsibility:
// run_job.cc prepares or resumes, trains and validates; run_boundary.cc does what comes between two
// steps: agreements of the ranks, recipe revisions, status updates to the daemon, checkpoints.
//
// Ownership: owns everything but spec, collective and options, which outlive it.
// Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_JOB_RUN_H_
#define NIBBLE_WORKER_TRAINER_LOOP_JOB_RUN_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_link.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/link/link_message.h"
#include "worker/trainer/loop/cpu_device.h"
#include "worker/trainer/loop/job_control.h"
#include "worker/trainer/loop/job_data.h"
#include "worker/trainer/loop/run_job.h"
#include "worker/trainer/loop/run_reporter.h"
#include "worker/trainer/loop/run_state.h"
#include "worker/trainer/loop/trainer.h"

namespace nibble {

class JobRun {
 public:
  JobRun(const JobSpec& spec, Collective& collective, const RunOptions& options)
      : spec_(spec), collective_(collective), options_(options) {}

  absl::StatusOr<RunSummary> Execute();

 private:
  absl::Status Prepare();
  absl::Status TrainAll();
  absl::Status ValidateAll();
  absl::Status PrepareCheckpoints();
  absl::Status Resume();
  // Runs the agreements of a step boundary, and waits while the job is paused. False: stop.
  absl::StatusOr<bool> PassBoundary();
  absl::StatusOr<JobControl::Boundary> Agree(std::chrono::milliseconds patience);
  // Adopts the timeline offered to all ranks; refuses revisions that the trainer cannot run.
  void Adopt(const JobControl::Boundary& boundary);
  // Puts the recipe of the next step in effect on all ranks or on none: if a rank cannot prepare
  // it, it is refused and the previous one stays in effect. An error if the revision has already
  // begun.
  absl::Status PrepareRecipe();
  void Refuse(int64_t revision, const std::string& reason);
  // Reports the refusal to the event log, the progress output and the daemon.
  void TellRefused(int64_t revision, const std::string& reason);
  // Called before a step: reports its recipe revision to the daemon if it is a new one.
  void BeginRevision();
  void TellDaemon(RankNews::Doing doing, const StepReport* report);
  // Takes a checkpoint of the next step if one is due and no rank is still storing the last one.
  absl::Status MaybeCheckpoint(bool storing);
  absl::Status TakeCheckpoint();
  // After the last step: waits for the checkpoint in flight, and takes the final one.
  absl::Status FinishCheckpoints();
  void ReportCheckpoint(const CheckpointGuest::Outcome& outcome);

  const JobSpec& spec_;
  JobSpec recorded_;  // spec_ with the label of the data's tokenizer; stored in checkpoints
  Collective& collective_;
  const RunOptions& options_;
  std::string directory_;
  std::unique_ptr<RunReporter> reporter_;
  std::optional<JobData> data_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<CheckpointGuest> guest_;  // null: no checkpoints
  std::unique_ptr<JobControl> control_;
  RankNews news_;         // the last status update sent to the daemon
  int64_t prepared_ = 0;  // revision that all ranks have in effect; 0: not agreed yet
  double memory_read_at_ = 0;
  std::optional<ResumeEvent> resumed_;
  std::string begins_with_;  // notice of a run that starts from another job's weights
  bool checkpoint_due_ = false;
  int64_t request_heard_ = 0;     // the highest checkpoint request received
  int64_t request_taken_ = 0;     // the request that the checkpoint in flight answers
  bool last_checkpoint_ = false;  // the run stops with a checkpoint, whatever the spec says
  int64_t taken_step_ = -1;       // of the newest checkpoint begun or resumed from
  RunSummary summary_;
  double began_ = 0;
};

// Seconds of the monotonic clock.
double SteadySeconds();
// Attaches the exit code for a full disk to a ResourceExhausted status.
absl::Status OfDisk(absl::Status status);
// Names the spec's memory bound in a ResourceExhausted status that it caused.
absl::Status NameBound(const JobSpec& spec, const absl::Status& status);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_JOB_RUN_H_

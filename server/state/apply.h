// The rule of every fact of an update: its preconditions and how it changes the state. Used only by
// State.
//
// Statuses as in State::Validate. Thread-safety: functions over their arguments.
#ifndef NIBBLE_SERVER_STATE_APPLY_H_
#define NIBBLE_SERVER_STATE_APPLY_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/limits.h"
#include "server/state/tables.h"

namespace nibble::apply {

// apply_job.cc
absl::Status Apply(const v1::JobSubmitted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobMoved& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobGoalSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobPrioritySet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobRestartPolicySet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobForgotten& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointRequested& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::PostsSettled& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AlertChanged& fact, const Stamp& stamp, Draft& draft);
// Gives a new job its notification targets, to which nothing was posted yet.
absl::Status SetTargets(const google::protobuf::RepeatedPtrField<v1::NotifyTarget>& targets,
                        v1::JobRecord& job);

// apply_attempt.cc
absl::Status Apply(const v1::AttemptLaunched& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AttemptStopping& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AttemptEnded& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RanksMoved& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerBlamed& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::GuardDecided& fact, const Stamp& stamp, Draft& draft);

// apply_recipe.cc
absl::Status Apply(const v1::RecipeRevised& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RevisionConfirmed& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RevisionRefused& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RevisionsArchived& fact, const Stamp& stamp, Draft& draft);
// Extends the timeline of a job: if ranks may now begin at an earlier step than it reaches back to,
// because the newest checkpoint was lost or a guard rolled back, the revisions that they ran from
// there on return from the archive.
void CoverTimeline(const v1::JobRecord& job, Draft& draft);
// Extends the timelines of the jobs that the update has changed.
void CoverTimelines(Draft& draft);

// apply_checkpoint.cc
absl::Status Apply(const v1::ShardStored& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::ShardHolderSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointCommitted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointDamaged& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointPinSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointDeleted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointTaskSet& fact, const Stamp& stamp, Draft& draft);

// apply_deletion.cc
absl::Status Apply(const v1::CheckpointRestoreOrdered& fact, const Stamp& stamp, Draft& draft);
// Erases the checkpoint, which must exist, and its shards, and records why. Beyond
// kMaxDeletionsPerJob the record of the job's oldest step goes: without it a shard that turns up
// goes to its worker's trash.
void EraseCheckpoint(const v1::Checkpoint& checkpoint, v1::DeletionKind kind,
                     const std::string& reason, const Stamp& stamp, Draft& draft);

// apply_cluster.cc
absl::Status Apply(const v1::ClusterNamed& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerRegistered& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerLost& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerModeSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerFlagged& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerFlagsCleared& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerForgotten& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::QueueSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::QueueDeleted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::StoreRestored& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::StoreOpened& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::StoreReplaced& fact, const Stamp& stamp, Draft& draft);
// apply_adoption.cc
absl::Status Apply(const v1::JobAdopted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AttemptAdopted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointAdopted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::OrphanRemovalSet& fact, const Stamp& stamp, Draft& draft);

// Checks the scheduling, restart policy and shape of a new job.
absl::Status CheckPlan(const v1::JobScheduling& scheduling, const v1::RestartPolicy& policy,
                       const v1::JobShape& shape, const Draft& draft);
// Adds an attempt that has ended; the oldest beyond kMaxRecentAttempts is dropped.
void AddEnded(v1::Attempt ended, v1::JobRecord& job);

// Remembers the request that an update carries out, and forgets the oldest ones beyond
// kMaxRequests.
absl::Status Remember(const v1::RequestRecord& request, const Stamp& stamp, Draft& draft);

// An attempt begins at `step`: later checkpoints of earlier attempts belong to an abandoned
// history, since the recipe may have changed in the new one.
void LeaveCheckpointsBeyond(int64_t step, const Stamp& stamp, const v1::JobRecord& job,
                            Draft& draft);
// A guard rolls the job back: no later attempt resumes from a checkpoint after `step`.
void LeaveHarmedCheckpoints(int64_t step, const Stamp& stamp, const v1::JobRecord& job,
                            Draft& draft);

// Closes the timeline of an attempt whose ranks will report nothing more. Superseded revisions that
// no rank confirmed are recorded as never run; after the last step, so are pending ones.
void SettleTimeline(bool all_steps_run, const v1::JobRecord& job, Draft& draft);

// Checks the invariants of every changed job after all facts of an update: it has a live attempt
// exactly if its state requires one, without an attempt its state agrees with its goal, and its
// queue exists. FailedPrecondition names the job.
absl::Status CheckJobs(const Draft& draft);

// Shared by the files above.

// The job, to be changed. NotFound; EditUnfinished: FailedPrecondition if it is finished.
absl::StatusOr<v1::JobRecord*> EditJob(Draft& draft, const std::string& id);
absl::StatusOr<v1::JobRecord*> EditUnfinished(Draft& draft, const std::string& id);
// Aborted, naming both numbers, unless attempt `number` is the live one.
absl::Status CheckAttempt(const v1::JobRecord& job, int64_t number);

// Bytes of a reason that becomes part of a longer text.
inline constexpr int64_t kMaxClause = kMaxReasonBytes - 250;

struct EventFacts {
  v1::JobEventKind kind = v1::JOB_EVENT_KIND_UNSPECIFIED;
  std::string text;
  v1::JobState from = v1::JOB_STATE_UNSPECIFIED;
  v1::JobState to = v1::JOB_STATE_UNSPECIFIED;
  int64_t attempt = 0;
  int64_t step = -1;
  int64_t revision = 0;
  const v1::JobAlert* alert = nullptr;
};
// The oldest event beyond kMaxEventsPerJob is dropped.
void AddEvent(const EventFacts& facts, const Stamp& stamp, v1::JobRecord& job, Draft& draft);

}  // namespace nibble::apply

#endif  // NIBBLE_SERVER_STATE_APPLY_H_

// The rules of every fact: what it asks of the state and what it makes of it. Within State only.
//
// Statuses as State::Validate. Thread-safety: functions over their arguments.
#ifndef NIBBLE_SERVER_STATE_APPLY_H_
#define NIBBLE_SERVER_STATE_APPLY_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/draft.h"
#include "server/state/limits.h"

namespace nibble::apply {

// apply_job.cc
absl::Status Apply(const v1::JobSubmitted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobMoved& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobGoalSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobPrioritySet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobRestartPolicySet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobForgotten& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointRequested& fact, const Stamp& stamp, Draft& draft);

// apply_notify.cc
absl::Status Apply(const v1::PostsSettled& fact, const Stamp& stamp, Draft& draft);
// A job that is made gets these targets, of which nothing was posted yet.
absl::Status SetTargets(const google::protobuf::RepeatedPtrField<v1::NotifyTarget>& targets,
                        v1::JobRecord& job);

// apply_attempt.cc
absl::Status Apply(const v1::AttemptLaunched& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AttemptStopping& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AttemptEnded& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RanksMoved& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::WorkerBlamed& fact, const Stamp& stamp, Draft& draft);

// apply_recipe.cc
absl::Status Apply(const v1::RecipeRevised& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RevisionConfirmed& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::RevisionRefused& fact, const Stamp& stamp, Draft& draft);

// apply_archive.cc
absl::Status Apply(const v1::RevisionsArchived& fact, const Stamp& stamp, Draft& draft);
// Puts a revision that has left the timeline, or what made way of it, into the archive.
void Archive(const std::string& job, const v1::RecipeRevision& revision,
             v1::TimelineRecord& timeline, Draft& draft);
// Of every job that the update has changed: where ranks may now begin at an earlier step than the
// timeline reaches back to, as the newest checkpoint was lost, what they ran from there on is taken
// out of the archive again.
void CoverTimelines(Draft& draft);

// apply_checkpoint.cc
absl::Status Apply(const v1::ShardStored& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::ShardHolderSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointCommitted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointDamaged& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointPinSet& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointDeleted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointTaskSet& fact, const Stamp& stamp, Draft& draft);

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

// apply_store.cc
absl::Status Apply(const v1::StoreRestored& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::JobAdopted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::AttemptAdopted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::CheckpointAdopted& fact, const Stamp& stamp, Draft& draft);
absl::Status Apply(const v1::OrphanRemovalSet& fact, const Stamp& stamp, Draft& draft);

// InvalidArgument unless it is 32 lower-case hexadecimal digits.
absl::Status CheckStoreId(absl::string_view field, const std::string& id);
// Of a job that is made: where it is to run and how often it may fail.
absl::Status CheckPlan(const v1::JobScheduling& scheduling, const v1::RestartPolicy& policy,
                       const v1::JobShape& shape, const Draft& draft);
// What an attempt wrote and did not commit can never be: it is over.
void DropUncommitted(const std::string& job, int64_t attempt, Draft& draft);
// Adds an attempt that has ended; the oldest beyond kMaxRecentAttempts is dropped.
void AddEnded(v1::Attempt ended, v1::JobRecord& job);

// The mutation that an update carries out is remembered; what is too old or too much is forgotten.
absl::Status Remember(const v1::RequestRecord& request, const Stamp& stamp, Draft& draft);

// An attempt begins at `step`: what earlier ones have committed beyond it is of a way that is not
// gone on. The recipe may have been changed on the new one.
void LeaveCheckpointsBeyond(int64_t step, const Stamp& stamp, const v1::JobRecord& job,
                            Draft& draft);

// Nothing more is heard of the ranks of an attempt: what made way and was not said to have been run
// was not. Where they have made every step, neither was what they had not heard of yet.
void SettleTimeline(bool every_step_made, const v1::JobRecord& job, Draft& draft);

// What must hold of every job when all facts of an update are applied: an attempt lives exactly
// where the state says so, one without is where its goal wants it, and its queue exists.
// FailedPrecondition names the job.
absl::Status CheckJobs(const Draft& draft);

// Shared by the files above.

// To change. NotFound; FailedPrecondition where it is finished.
absl::StatusOr<v1::JobRecord*> EditJob(Draft& draft, const std::string& id);
absl::StatusOr<v1::JobRecord*> EditUnfinished(Draft& draft, const std::string& id);
// Aborted naming both numbers unless attempt `number` lives.
absl::Status CheckAttempt(const v1::JobRecord& job, int64_t number);

// Of a reason that becomes part of a longer text, bytes.
inline constexpr int64_t kMaxClause = kMaxReasonBytes - 250;

struct EventFacts {
  v1::JobEventKind kind = v1::JOB_EVENT_KIND_UNSPECIFIED;
  std::string text;
  v1::JobState from = v1::JOB_STATE_UNSPECIFIED;
  v1::JobState to = v1::JOB_STATE_UNSPECIFIED;
  int64_t attempt = 0;
  int64_t step = -1;
  int64_t revision = 0;
};
// The oldest event beyond kMaxEventsPerJob is dropped.
void AddEvent(const EventFacts& facts, const Stamp& stamp, v1::JobRecord& job, Draft& draft);

}  // namespace nibble::apply

#endif  // NIBBLE_SERVER_STATE_APPLY_H_

// Turns requests, reports of workers, plans of the scheduler and timeouts into updates: pure
// functions of the state, the request, and its author and time. They read and check; nothing
// changes until State::Apply of the update that they return.
//
// A request id that was carried out before gets the first answer and no update. Answers contain
// what the decision made (ids, revisions, numbers); of a job, checkpoint or worker they contain
// only the name, and the caller fills in the other fields (server/state/views.h) once the update is
// applied.
//
// Every function returns the statuses of State::Validate; Decide returns AlreadyExists for a
// request id that was used for another request; reports of an attempt or incarnation that is over
// get Aborted, naming both numbers. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DECIDE_H_
#define NIBBLE_SERVER_STATE_DECIDE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/store_identity.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/update.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/limits.h"
#include "server/state/state.h"

namespace nibble {

// The author and time of a request: from the connection and the injected clock, never from the
// request. The time is for people: no decision depends on it.
struct Caller {
  std::string author;
  int64_t now_unix_ms = 0;
  // Jobs that workers store data of, known to the state or not: their ids are not reused.
  const std::set<std::string>* taken_jobs = nullptr;
  // Whether events of jobs may be posted to a URL, and why not; null: to no URL.
  const std::function<absl::Status(const std::string& url)>* may_post = nullptr;
  // The only projects that its new jobs may belong to, and whose jobs it sees; empty: any, or none.
  std::vector<std::string> projects = {};
  // The worker `author`, which may take back its own drain and nobody else's.
  bool is_worker = false;
};

template <class Response>
struct Decision {
  std::optional<v1::Update> update;  // for the state it was decided on; unset: no change
  Response response;
  bool repeated = false;  // the response is the first one to this request id
};

// Unset: nothing changes.
using MaybeUpdate = absl::StatusOr<std::optional<v1::Update>>;

// The progress of a job that is not durable: the next step of its ranks, by their last report.
struct LiveProgress {
  int64_t attempt = 0;  // progress of any other attempt than the live one is ignored
  int64_t next_step = 0;
  // The attempt is older than this coordinator process and its rank 0 has not reported since: its
  // progress is unknown.
  bool unheard = false;
};

// decide_submit.cc: new jobs. The whole spec is checked, and a forked recipe against the model.
absl::StatusOr<Decision<v1::SubmitJobResponse>> Decide(const State& state,
                                                       const v1::SubmitJobRequest& request,
                                                       const Caller& caller);
absl::StatusOr<Decision<v1::ForkJobResponse>> Decide(const State& state,
                                                     const v1::ForkJobRequest& request,
                                                     const Caller& caller);
// Forgets the first-finished of the jobs beyond kMaxFinishedJobs that can be forgotten.
MaybeUpdate DecideForget(const State& state, const Caller& caller);

// decide_requests.cc: control of jobs. A job without ranks changes its state at once, others when
// their ranks report it.
absl::StatusOr<Decision<v1::PauseJobResponse>> Decide(const State& state,
                                                      const v1::PauseJobRequest& request,
                                                      const Caller& caller);
absl::StatusOr<Decision<v1::ResumeJobResponse>> Decide(const State& state,
                                                       const v1::ResumeJobRequest& request,
                                                       const Caller& caller);
absl::StatusOr<Decision<v1::CancelJobResponse>> Decide(const State& state,
                                                       const v1::CancelJobRequest& request,
                                                       const Caller& caller);
absl::StatusOr<Decision<v1::KillJobResponse>> Decide(const State& state,
                                                     const v1::KillJobRequest& request,
                                                     const Caller& caller);
absl::StatusOr<Decision<v1::CheckpointJobResponse>> Decide(const State& state,
                                                           const v1::CheckpointJobRequest& request,
                                                           const Caller& caller);
absl::StatusOr<Decision<v1::SetJobPriorityResponse>> Decide(
    const State& state, const v1::SetJobPriorityRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::SetJobRestartPolicyResponse>> Decide(
    const State& state, const v1::SetJobRestartPolicyRequest& request, const Caller& caller);

// decide_recipe.cc. FailedPrecondition for a stale expected_revision. "now" is the next step that
// any rank can run: from `live` while ranks run, else where the next attempt will begin.
// Unavailable while that is unknown: the recipe of steps that ranks have run never changes.
absl::StatusOr<Decision<v1::SetRecipeResponse>> Decide(const State& state,
                                                       const v1::SetRecipeRequest& request,
                                                       const Caller& caller,
                                                       const LiveProgress& live);
absl::StatusOr<Decision<v1::RollbackRecipeResponse>> Decide(
    const State& state, const v1::RollbackRecipeRequest& request, const Caller& caller,
    const LiveProgress& live);

// decide_requests.cc: checkpoints.
absl::StatusOr<Decision<v1::VerifyCheckpointResponse>> Decide(
    const State& state, const v1::VerifyCheckpointRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::ExportCheckpointResponse>> Decide(
    const State& state, const v1::ExportCheckpointRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::PinCheckpointResponse>> Decide(const State& state,
                                                           const v1::PinCheckpointRequest& request,
                                                           const Caller& caller);
absl::StatusOr<Decision<v1::UnpinCheckpointResponse>> Decide(
    const State& state, const v1::UnpinCheckpointRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::DeleteCheckpointResponse>> Decide(
    const State& state, const v1::DeleteCheckpointRequest& request, const Caller& caller);

// decide_restore.cc: checkpoints that workers have and that are not in the catalogue.

// A worker's shard of such a checkpoint.
struct LooseShard {
  std::string worker;
  v1::ShardReport shard;
  bool trashed = false;  // false: the worker stores it
};
using LooseShards = absl::Span<const LooseShard>;  // of one job, of present workers

// Orders workers to restore a checkpoint from their trash. NotFound names the ranks of which no
// worker has the shard, or two have different ones. Any worker may report a shard here: a person
// has chosen the checkpoint, and one contradiction prevents that it is adopted.
absl::StatusOr<Decision<v1::RestoreCheckpointResponse>> Decide(
    const State& state, const v1::RestoreCheckpointRequest& request, const Caller& caller,
    LooseShards shards);
// Adopts a checkpoint of the job whose restoration was ordered and whose shards are all stored
// again. Unset: there is none.
MaybeUpdate DecideRestored(const State& state, const std::string& job, LooseShards shards,
                           const Caller& caller);

// decide_requests.cc: workers and queues. PermissionDenied for a worker that somebody else took out
// of service and that would change it; to drain it while it drains changes nothing.
absl::StatusOr<Decision<v1::DrainWorkerResponse>> Decide(const State& state,
                                                         const v1::DrainWorkerRequest& request,
                                                         const Caller& caller);
absl::StatusOr<Decision<v1::UncordonWorkerResponse>> Decide(
    const State& state, const v1::UncordonWorkerRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::SetQueueResponse>> Decide(const State& state,
                                                      const v1::SetQueueRequest& request,
                                                      const Caller& caller);
absl::StatusOr<Decision<v1::DeleteQueueResponse>> Decide(const State& state,
                                                         const v1::DeleteQueueRequest& request,
                                                         const Caller& caller);

// decide_attempt.cc: what the scheduler plans.

// Slots of one worker that an attempt uses.
struct SlotChoice {
  std::string worker;
  std::vector<int32_t> slots;
};
// Launches the next attempt of a job on these slots, ranks in their order. It resumes from
// `resume`, one of LoadableCheckpoints, or if that is unset begins at step 0.
MaybeUpdate DecideLaunch(const State& state, const std::string& job,
                         const std::vector<SlotChoice>& slots,
                         const std::optional<v1::CheckpointRef>& resume, const std::string& reason,
                         const Caller& caller);
// Frees the slots of a job: after a checkpoint if its ranks have progress to lose, at once if they
// are still starting. The job then waits for slots again.
MaybeUpdate DecidePreempt(const State& state, const std::string& job, const std::string& reason,
                          int64_t grace_ms, const Caller& caller);
// Ends an attempt whose grace period is over; unset if it has stopped meanwhile.
MaybeUpdate DecideStopDeadline(const State& state, const std::string& job, int64_t attempt,
                               const Caller& caller);
// Milliseconds that a stopping attempt has for its checkpoint, counted from the request to stop; 0
// if it is not stopping. kDefaultGraceMs if the store is of a version that kept no durations.
int64_t StopGraceOf(const v1::Attempt& attempt);

// Committed checkpoints that can be loaded now, newest first: not damaged, every shard on a present
// worker. Last comes the one of another job that it may begin from (Draft::OriginOf).
std::vector<const v1::Checkpoint*> LoadableCheckpoints(const State& state,
                                                       const v1::JobRecord& job);

// Why no attempt of the job can begin, whichever workers come back: every checkpoint of it is
// damaged, or the one of another job that it is to begin with is damaged or gone. Names each
// checkpoint and what is wrong with it, and the remedy. Empty: one can.
std::string WhyNeverResumes(const State& state, const v1::JobRecord& job);
// Fails a job without ranks for that reason; unset if it waits for something else.
MaybeUpdate DecideUnresumable(const State& state, const std::string& job, const Caller& caller);

// decide_report.cc: what workers report.

// The ranks of one gang on one worker: revisions in effect, phases, and the consequences for the
// job.
MaybeUpdate DecideGangReport(const State& state, const std::string& worker, int64_t incarnation,
                             const v1::GangReport& report, const Caller& caller);
// A durable shard. The last shard of a checkpoint commits it; a matching shard of a
// finished checkpoint, committed or damaged, makes the worker a holder. Aborted for a new
// checkpoint of an attempt that is over.
MaybeUpdate DecideShardReport(const State& state, const std::string& worker,
                              const v1::ShardReport& report, const Caller& caller);
// All shards that a worker stores: it is no longer a holder of any other.
MaybeUpdate DecideShardInventory(const State& state, const std::string& worker,
                                 const std::vector<v1::ShardReport>& shards, const Caller& caller,
                                 int64_t most_facts = kMaxFacts);
// A reader on some worker found a damaged shard. If other workers store the shard, the holder no
// longer counts as one; otherwise the checkpoint is damaged. Unset if it was no holder.
MaybeUpdate DecideDamage(const State& state, const v1::DamagedShard& damage, const Caller& caller);
MaybeUpdate DecideTaskReport(const State& state, const std::string& worker,
                             const v1::TaskReport& report, const Caller& caller);

// decide_requests.cc: requests by the coordinator.

struct UploadOrder {
  std::string place;   // s3://BUCKET/PREFIX of the job
  int32_t keep = 0;    // newest copies of the job that stay there
  std::string worker;  // that uploads; empty: whichever has most of the shards
};

// Requests the upload of a checkpoint. Unset if it is not a good checkpoint, or an upload of the
// job has not ended.
MaybeUpdate DecideUpload(const State& state, const v1::CheckpointRef& ref, const UploadOrder& order,
                         const Caller& caller);

// Ends the job's upload as failed, since no worker can finish it. Unset if none is open.
MaybeUpdate DecideUploadLost(const State& state, const std::string& job, const std::string& why,
                             const Caller& caller);

// decide_failure.cc: timeouts and failures.

// A daemon registers. A new incarnation ends the attempts that relied on the old one.
MaybeUpdate DecideRegister(const State& state, const v1::WorkerIdentity& identity,
                           const Caller& caller);

// A lease has expired: the attempts with ranks there end.
MaybeUpdate DecideWorkerLost(const State& state, const std::string& worker, int64_t incarnation,
                             const std::string& reason, const Caller& caller);
// Ends an attempt from outside, as the watchdog does. `worker` gets the blame, if it is not empty.
MaybeUpdate DecideAttemptFailed(const State& state, const std::string& job, int64_t attempt,
                                v1::AttemptOutcome outcome, const std::string& worker,
                                const std::string& reason, const Caller& caller);
// Milliseconds before the next attempt after `failures` in a row.
int64_t BackoffMs(const v1::RestartPolicy& policy, int32_t failures);
// Milliseconds between the end of the last attempt and the next one; 0: none. Taken from the policy
// if the store is of a version that kept no durations.
int64_t BackoffOf(const v1::JobRecord& job);

// decide_report.cc

// Results of posting events. Unset if all of them are known or belong to jobs that no longer exist.
MaybeUpdate DecideSettled(const State& state, const std::vector<v1::PostsSettled>& settled,
                          const Caller& caller);

// Records alerts that begin to fire or are resolved, one change for each alert of a job. Unset if
// nothing changes: an alert is as recorded, its job no longer exists, or has kMaxAlerts.
MaybeUpdate DecideAlerts(const State& state, const std::vector<v1::AlertChanged>& changes,
                         const Caller& caller);
// The recorded alert of this name that fires about the job; null if there is none.
const v1::JobAlert* FindAlert(const v1::JobRecord& job, const std::string& name);

// decide_store.cc: the identity of the store. docs/decisions/0008-whose-store.md and
// 0044-histories.md give the argument.

// Random, of one opening of the store: an id of 32 hexadecimal digits, and a key. With an empty id,
// in tests, the store gets no identity.
struct FreshIds {
  std::string id;
  std::string key;
};

// The update with which a coordinator starts: the first one of an empty state; the beginning of its
// life; and a new epoch for a store `restored` from a backup, or made before epochs had ids. Unset
// for a store that was replaced, unless it is restored. FailedPrecondition names both clusters if
// the store belongs to another one.
MaybeUpdate DecideStart(const State& state, const std::string& cluster, const FreshIds& fresh,
                        bool restored, const Caller& caller);

// A worker shows the newest state in which it has known a store.
struct StoreSighting {
  const std::string& worker;
  const v1::StoreIdentity& seen;
  absl::FunctionRef<bool()> authentic;  // whether the state's store has issued `seen`
  bool began = false;     // a report of this worker has begun an epoch in the life of this process
  bool restored = false;  // this process was started with a store that was restored
};

// What follows from a sighting that the state's own history does not contain:
//   an update of this epoch that this history does not have: this is an older copy, or another
//   coordinator continues a copy. A new epoch begins.
//   an epoch with the same number and another id: one backup was restored twice. A new epoch begins;
//   if this worker has begun one, the lower of both ids is replaced, so that two coordinators that
//   are both alive come to an end.
//   a later epoch: another coordinator continues this store, and this one is replaced (StoreReplaced)
//   unless it was just restored: then it continues with a new epoch.
// PermissionDenied if the store has not issued what the worker shows.
MaybeUpdate DecideStoreSeen(const State& state, const StoreSighting& sighting,
                            const std::string& fresh_id, const Caller& caller);

// decide_orphans.cc: a store that was lost or restored adopts from its workers what it no longer
// knows: jobs, attempts, checkpoints.
//
// Data of a job that a worker stores and that the present store and epoch of its coordinator did
// not order is reported as OrphanEvidence. If the state knows the job, it adopts the data that
// belong to that job at once; otherwise an operator has to adopt or remove it.

// What one worker stores of one job; `orphan.shards` are those that the present epoch did not
// order.
struct OrphanEvidence {
  std::string worker;
  const v1::Orphan* orphan = nullptr;
};
using Evidence = absl::Span<const OrphanEvidence>;  // of one job

// Whether data that belongs to `store` is this job's: made in an earlier epoch of the state's
// store, or before stores had an identity, or the job was adopted from another store.
bool IsOwn(const State& state, const v1::JobRecord& job, const v1::StoreIdentity& store);
// Whether the job was adopted: its id was not made from its number.
bool IsAdopted(const v1::JobRecord& job);

// Adopts data of a known job: attempts newer than the state's, the timeline of the live one, and
// checkpoints with all shards present, those of the live attempt too.
MaybeUpdate DecideRecover(const State& state, const std::string& job, Evidence evidence,
                          const Caller& caller);

// See AdoptJob and RemoveOrphan in proto/nibble/v1. An orphan younger than `grace_ms` is not
// removed.
absl::StatusOr<Decision<v1::AdoptJobResponse>> Decide(const State& state,
                                                      const v1::AdoptJobRequest& request,
                                                      const Caller& caller, Evidence evidence);
absl::StatusOr<Decision<v1::RemoveOrphanResponse>> Decide(const State& state,
                                                          const v1::RemoveOrphanRequest& request,
                                                          const Caller& caller, Evidence evidence,
                                                          int64_t grace_ms);
// Closes the removal orders of a worker for jobs that are no longer among its `orphans`.
MaybeUpdate DecideRemovalsDone(const State& state, const std::string& worker,
                               const std::set<std::string>& orphans, const Caller& caller);

// The orphan as clients see it.
v1::OrphanJob DescribeOrphan(const State& state, const std::string& job, Evidence evidence);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_DECIDE_H_

// What workers say, what the scheduler plans and what time brings become updates. As decide.h:
// pure, nothing is changed. An unset update: nothing changes.
//
// Statuses as State::Validate; Aborted naming both numbers is for whoever speaks for an attempt or
// an incarnation that is over. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DECIDE_GANG_H_
#define NIBBLE_SERVER_STATE_DECIDE_GANG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/update.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

using MaybeUpdate = absl::StatusOr<std::optional<v1::Update>>;

// decide_launch.cc: the scheduler.

// Slots of one worker for an attempt.
struct SlotChoice {
  std::string worker;
  std::vector<int32_t> slots;
};
// The next attempt of a job on these slots, ranks in their order. It resumes from `resume`, one of
// LoadableCheckpoints, or where that is unset from where the job begins.
MaybeUpdate DecideLaunch(const State& state, const std::string& job,
                         const std::vector<SlotChoice>& slots,
                         const std::optional<v1::CheckpointRef>& resume, const std::string& reason,
                         const Caller& caller);
// Frees the slots of a job: after a checkpoint where its ranks have something to lose, at once
// where they are still starting. Its next attempt waits for slots as it did before.
MaybeUpdate DecidePreempt(const State& state, const std::string& job, const std::string& reason,
                          int64_t grace_ms, const Caller& caller);
// The end of an attempt whose grace is over; unset where it has stopped meanwhile.
MaybeUpdate DecideStopDeadline(const State& state, const std::string& job, int64_t attempt,
                               const Caller& caller);
// Milliseconds that a stopping attempt has for its checkpoint, from when it was told; 0: it does
// not stop. The default where the store is of a version that kept no durations.
int64_t StopGraceOf(const v1::Attempt& attempt);

// Committed checkpoints that can be loaded now, newest first: not damaged, every shard on a worker
// that is present. Also the one of another job that it may begin from (Draft::OriginOf), last.
std::vector<const v1::Checkpoint*> LoadableCheckpoints(const State& state,
                                                       const v1::JobRecord& job);

// decide_report.cc: workers.

// The ranks of one gang on one worker: revisions in force, phases, and what follows for the job.
MaybeUpdate DecideGangReport(const State& state, const std::string& worker, int64_t incarnation,
                             const v1::GangReport& report, const Caller& caller);
// A durable shard. That of a checkpoint that exists makes the worker a holder; the last one of a
// checkpoint commits it. Aborted for a shard of an attempt that is over.
MaybeUpdate DecideShardReport(const State& state, const std::string& worker,
                              const v1::ShardReport& report, const Caller& caller);
// All shards that a worker has: it is no longer a holder of others.
MaybeUpdate DecideShardInventory(const State& state, const std::string& worker,
                                 const std::vector<v1::ShardReport>& shards, const Caller& caller);
// A reader on some worker has met damage. The copy counts no longer where others have the shard;
// where nobody else has, the checkpoint is damaged. Unset where the holder has none.
MaybeUpdate DecideDamage(const State& state, const v1::DamagedShard& damage, const Caller& caller);
MaybeUpdate DecideTaskReport(const State& state, const std::string& worker,
                             const v1::TaskReport& report, const Caller& caller);

// decide_failure.cc: time, and what it brings.

// A daemon says who it is. A new incarnation ends the attempts that relied on the old one.
MaybeUpdate DecideRegister(const State& state, const v1::WorkerIdentity& identity,
                           const Caller& caller);

// A lease has run out: the attempts with ranks there have ended.
MaybeUpdate DecideWorkerLost(const State& state, const std::string& worker, int64_t incarnation,
                             const std::string& reason, const Caller& caller);
// An attempt that is given up from outside, such as by the watchdog. `worker` is to blame unless it
// is empty.
MaybeUpdate DecideAttemptFailed(const State& state, const std::string& job, int64_t attempt,
                                v1::AttemptOutcome outcome, const std::string& worker,
                                const std::string& reason, const Caller& caller);
// Milliseconds before the next attempt after `failures` in a row.
int64_t BackoffMs(const v1::RestartPolicy& policy, int32_t failures);
// Milliseconds between the last attempt's end and the next attempt; 0: none. By the policy where
// the store is of a version that kept no durations.
int64_t BackoffOf(const v1::JobRecord& job);

// decide_notify.cc

// What has become of posts. Unset where all of these jobs are gone, or all of it is known.
MaybeUpdate DecideSettled(const State& state, const std::vector<v1::PostsSettled>& settled,
                          const Caller& caller);

// decide_cluster.cc

// What a coordinator's start says of its store: the first update of an empty state; an id for one
// that was made before stores had one; a new epoch where it was `restored` from a backup. `fresh_id`
// is random; empty, in tests: the store gets none. FailedPrecondition naming both where the store is
// of another cluster.
MaybeUpdate DecideStart(const State& state, const std::string& cluster, const std::string& fresh_id,
                        bool restored, const Caller& caller);
// Forgets the longest finished job beyond kMaxFinishedJobs that nothing holds.
MaybeUpdate DecideForget(const State& state, const Caller& caller);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_DECIDE_GANG_H_

// Properties of single entities: their keys, the states of jobs and ranks with the transitions
// between them, and which events of a job are posted to which target.
//
// Keys sort in numeric order; their parts are separated by '/', which names never contain.
//
// The states of a job and their transitions:
//
//   QUEUED → STARTING → RUNNING → SUCCEEDED
//   STARTING, RUNNING → RECOVERING → RUNNING     an attempt failed, another is launched
//   RUNNING → PREEMPTED → QUEUED                 a checkpoint first, then the slots are free
//   STARTING → QUEUED                            a launch is undone
//   RUNNING ↔ PAUSED                             its ranks are paused, the attempt stays alive
//   QUEUED ↔ PAUSED, RECOVERING → PAUSED         without ranks
//   STARTING, RUNNING, RECOVERING, PREEMPTED → FAILED, PREEMPTED → SUCCEEDED
//   every unfinished state → CANCELLED
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_ENTITIES_H_
#define NIBBLE_SERVER_STATE_ENTITIES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "job/choices.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// The key of entities that exist only once.
inline constexpr absl::string_view kOnlyKey = "";

// "train-7/": the prefix of the keys of everything that belongs to a job.
std::string JobPrefix(absl::string_view job);
// "train-7/0000000000000012"
std::string EventKey(absl::string_view job, int64_t number);
// "train-7/0000000000001200/0000000000000003": job, step, attempt.
std::string CheckpointKey(const v1::CheckpointRef& ref);
// The checkpoint's key and the rank, "…/00005"; ShardPrefix is everything before the rank.
std::string ShardKey(const v1::CheckpointRef& ref, int32_t rank);
std::string ShardPrefix(const v1::CheckpointRef& ref);
// The checkpoint part of a shard's key; a view into it.
absl::string_view CheckpointOfShard(absl::string_view shard_key);
// Job and number, as in EventKey, with 20 digits.
std::string RevisionKey(absl::string_view job, int64_t number);
// Unambiguous although authors may contain '/', because request ids do not.
std::string RequestKey(absl::string_view author, absl::string_view request_id);
// "node-3/train-7": the order to a worker to delete an orphaned job.
std::string RemovalPrefix(absl::string_view worker);
std::string RemovalKey(absl::string_view worker, absl::string_view job);

// "checkpoint of train-7 at step 1200 (attempt 3)", for messages.
std::string CheckpointText(const v1::CheckpointRef& ref);

// Why a shard of an attempt that is over is deleted.
std::string NotCommittedText(int64_t attempt);

// The reason of an attempt that succeeded before the last step begins with this.
inline constexpr char kStoppedEarly[] = "stopped early";

bool MayMove(v1::JobState from, v1::JobState to);
// SUCCEEDED, FAILED or CANCELLED.
bool IsFinished(v1::JobState state);

enum class NeedsAttempt { kNever, kEither, kAlways };
// Whether a job in this state has a live attempt.
NeedsAttempt AttemptIn(v1::JobState state);

// Whether ranks may go from one phase to another. Final phases are never left.
bool MayMove(v1::RankPhase from, v1::RankPhase to);

// Whether an attempt of the job that loads this checkpoint takes only its weights and begins at
// step 0: it belongs to another job, named in init_from.
bool TakesOnlyWeights(const v1::JobRecord& job, const v1::CheckpointRef& resume);
// The first step of the live attempt.
int64_t FirstStep(const v1::JobRecord& job);

// "RUNNING", "UNSPECIFIED"; "UNKNOWN" for other numbers.
absl::string_view StateName(v1::JobState state);
absl::string_view PhaseName(v1::RankPhase phase);
absl::string_view OutcomeName(v1::AttemptOutcome outcome);

// Posts. A target's `wanted_event` is the newest event that it wants and `settled_event` the newest
// that was delivered or given up, so the stored job alone tells which events are still to be
// posted.

// The event's name in a spec; unset if it is never posted.
std::optional<NotifyEvent> PostedAs(const v1::JobEvent& event);
// Whether the guard watches the loss or the gradient norm for spikes.
bool IsSpike(const v1::GuardDecision& decision);
bool Wants(const v1::NotifyTarget& target, const v1::JobEvent& event);
// Whether some target has events that are neither delivered nor given up.
bool HasUnsettled(const v1::JobRecord& job);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_ENTITIES_H_

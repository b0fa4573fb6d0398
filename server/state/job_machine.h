// The states of a job and the ways between them.
//
//   QUEUED → STARTING → RUNNING → SUCCEEDED
//   STARTING, RUNNING → RECOVERING → RUNNING     an attempt failed, another is launched
//   RUNNING → PREEMPTED → QUEUED                 a checkpoint first, then the slots are free
//   STARTING → QUEUED                            a launch is taken back
//   RUNNING ↔ PAUSED                             its ranks stand still, the attempt lives on
//   QUEUED ↔ PAUSED, RECOVERING → PAUSED         without ranks
//   STARTING, RUNNING, RECOVERING, PREEMPTED → FAILED, PREEMPTED → SUCCEEDED
//   all that is not finished → CANCELLED
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_JOB_MACHINE_H_
#define NIBBLE_SERVER_STATE_JOB_MACHINE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// What the reason of an attempt begins with that succeeded before the last step.
inline constexpr char kStoppedEarly[] = "stopped early";

bool MayMove(v1::JobState from, v1::JobState to);
// SUCCEEDED, FAILED or CANCELLED.
bool IsFinished(v1::JobState state);

enum class NeedsAttempt { kNever, kEither, kAlways };
// Whether a job in this state has an attempt that lives.
NeedsAttempt AttemptIn(v1::JobState state);

// Whether ranks in one phase may next be seen in another. What has ended stays as it ended.
bool MayMove(v1::RankPhase from, v1::RankPhase to);

// Of a checkpoint that an attempt of the job loads: it is another job's, of which only the weights
// are taken. The attempt begins at step 0, not at that of the checkpoint.
bool TakesOnlyWeights(const v1::JobRecord& job, const v1::CheckpointRef& resume);
// The first step of the attempt that lives.
int64_t FirstStep(const v1::JobRecord& job);

// "RUNNING", "UNSPECIFIED"; numbers that are no state are "UNKNOWN".
absl::string_view StateName(v1::JobState state);
absl::string_view PhaseName(v1::RankPhase phase);
absl::string_view OutcomeName(v1::AttemptOutcome outcome);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_JOB_MACHINE_H_

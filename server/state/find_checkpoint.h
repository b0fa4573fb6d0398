// Which checkpoint a request means.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_FIND_CHECKPOINT_H_
#define NIBBLE_SERVER_STATE_FIND_CHECKPOINT_H_

#include "absl/status/statusor.h"
#include "proto/nibble/v1/job.pb.h"
#include "server/state/state.h"

namespace nibble {

// The reference with its attempt: of step -1 the newest good checkpoint of the job, of attempt 0
// the newest good one of the step, or the newest damaged one where none is good. NotFound naming
// the job or the checkpoint; one that is not committed is not found.
absl::StatusOr<v1::CheckpointRef> FindCheckpoint(const State& state, const v1::CheckpointRef& ref);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_FIND_CHECKPOINT_H_

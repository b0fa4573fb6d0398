// Which checkpoint a request means.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_FIND_CHECKPOINT_H_
#define NIBBLE_SERVER_STATE_FIND_CHECKPOINT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/job.pb.h"
#include "server/state/state.h"

namespace nibble {

// The reference with its attempt: of step -1 the newest good checkpoint of the job, of attempt 0
// the newest good one of the step, or the newest damaged one where none is good; any other attempt
// is the one that made it. NotFound naming the job, the attempt or the checkpoint, by its path from
// `field`, which the request has the reference in; one that is not committed is not found.
absl::StatusOr<v1::CheckpointRef> FindCheckpoint(const State& state, const v1::CheckpointRef& ref,
                                                 absl::string_view field = "ref");

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_FIND_CHECKPOINT_H_

// Waiting until a job has come to a step.
//
// Ownership: the session is borrowed for the call. Thread-safety: as Session.
#ifndef NIBBLE_CLIENT_REMOTE_STEP_WAIT_H_
#define NIBBLE_CLIENT_REMOTE_STEP_WAIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// The job when its ranks have made `step` steps, or as it is when it is finished before, when
// --timeout is over, or when Ctrl-C detaches. Its next_step says which. A coordinator that goes
// away and comes back is waited for.
absl::StatusOr<v1::Job> WaitForStep(Session& session, const std::string& job, int64_t step);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_STEP_WAIT_H_

// Waiting for a job without looking again and again.
//
// Ownership: the session is borrowed for the call. Thread-safety: as Session.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_
#define NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// The job when it is in one of the states (none: finished); or as it is when --timeout is over,
// when Ctrl-C detaches, or when it is finished and can no longer get there. Without --timeout it
// waits as long as it takes; a coordinator that goes away and comes back is waited for too.
absl::StatusOr<v1::Job> WaitForJob(Session& session, const std::string& job,
                                   const std::vector<v1::JobState>& states);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_

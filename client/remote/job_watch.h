// Following a job until it is finished: drawn in place on a terminal, plain lines elsewhere, one
// JSON object a line for programs.
//
// The coordinator may go away and come back: the watch says so once and goes on where it was, by
// its resume token. Ctrl-C lets go of the job, which goes on.
//
// Ownership: the session is borrowed for the call. Thread-safety: as Session.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_
#define NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"

namespace nibble {

// `job` is an id. The exit code of the job, or kExitNotFinished when Ctrl-C detaches.
absl::StatusOr<int> WatchJob(Session& session, const std::string& job);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_

// `nibble job watch` and `logs`: follows a job until it is finished. Redrawn in place on a
// terminal, plain lines elsewhere, one JSON object per line for programs.
//
// If the coordinator restarts, the watch reports it once and resumes by its resume token. Ctrl-C
// detaches; the job keeps running.
//
// Ownership: the session is borrowed for the call. Thread-safety: as Session.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_
#define NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"

namespace nibble {

// `job` is an id. Returns the exit code of the job, or kExitNotFinished when Ctrl-C detaches.
absl::StatusOr<int> WatchJob(Session& session, const std::string& job);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_

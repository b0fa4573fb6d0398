// Following a job until it finishes: redrawn in place on a terminal, plain lines on a pipe, one
// JSON object per line for programs (watch_display.h).
//
// The losses before the watch are fetched once; then the stream is followed. A restart of the
// coordinator is reported once, and the watch resumes from its resume token. Ctrl-C and the key q
// detach; the job keeps running.
//
// Ownership: the session is borrowed for the call. Thread-safety: as Session.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_
#define NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"
#include "client/shell/output.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// A job whose losses are shown beside those of the followed one.
struct WatchReference {
  std::string job;                      // id; empty: none
  std::vector<v1::StepSample> samples;  // that are known, by step; later ones are fetched
};

// `job` is an id. All output is streamed; the reply has only the exit code: the job's, or
// kExitNotFinished when the user detaches.
absl::StatusOr<Reply> WatchJob(Session& session, const std::string& job,
                               const WatchReference& reference = {});

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_WATCH_H_

// Waiting for a job to reach a state or a step, and the stream of its changes.
//
// Ctrl-C detaches from the job, which keeps running. An unreachable coordinator is retried.
//
// Ownership: sessions and clients are borrowed; a WatchStream owns its call and its thread.
// Thread-safety: as Session; WatchStream::Cancel from any thread, its other methods from one.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_
#define NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/remote/verb.h"
#include "common/mutex.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {

// Waits until the job is in one of the states, or finished if there are none. Returns its present
// state also when --timeout has passed, when Ctrl-C detaches, or when the job has finished in
// another state. Without --timeout the wait has no limit and outlives restarts of the coordinator.
absl::StatusOr<v1::Job> WaitForJob(Session& session, const std::string& job,
                                   const std::vector<v1::JobState>& states);

// Waits until the job has completed `step` steps. Returns its present state also when it finishes
// before, when --timeout has passed, or when Ctrl-C detaches; its next_step tells them apart.
absl::StatusOr<v1::Job> WaitForStep(Session& session, const std::string& job, int64_t step);

// Whether a stream that ended with this status can be opened again: the coordinator stopped, or the
// connection broke.
bool MayResume(const absl::Status& end);

// A stream of job changes, read by a thread of its own, so that the caller can draw and cancel
// while it waits.
class WatchStream {
 public:
  WatchStream(const CoordinatorClient& client, const v1::WatchJobsRequest& request);
  ~WatchStream();

  // The next message; waits up to `wait`. Unset: none arrived, or the stream has ended.
  std::optional<v1::WatchJobsResponse> Next(absl::Duration wait);
  // Set when the stream has ended and every message was returned; for
  // CoordinatorClient::Explain().
  std::optional<absl::Status> End();
  void Cancel() { stream_->Cancel(); }

 private:
  void Read();

  const std::unique_ptr<ResponseStream<v1::WatchJobsResponse>> stream_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::WatchJobsResponse> messages_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_

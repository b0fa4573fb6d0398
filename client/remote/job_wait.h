// Waiting for a job: until it is in a state, until it has made a step, and the stream of its
// changes.
//
// Ctrl-C detaches from the job, which keeps running. An unreachable coordinator is retried.
//
// Ownership: sessions and clients are borrowed; a WatchStream owns its call and its thread.
// Thread-safety: as Session; WatchStream::Cancel from any thread, its other methods from one.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_
#define NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/remote/verb.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {

// Returns the job when it is in one of the states (none: finished); the job as it is when
// --timeout is over, when Ctrl-C detaches, or when it is finished and cannot reach them any more.
// Without --timeout it waits without limit, also for a coordinator that restarts.
absl::StatusOr<v1::Job> WaitForJob(Session& session, const std::string& job,
                                   const std::vector<v1::JobState>& states);

// Returns the job when its ranks have made `step` steps; the job as it is when it is finished
// before, when --timeout is over, or when Ctrl-C detaches. Its next_step says which.
absl::StatusOr<v1::Job> WaitForStep(Session& session, const std::string& job, int64_t step);

// A stream of job changes, read by its own thread, so that the caller can draw and cancel
// meanwhile.
class WatchStream {
 public:
  WatchStream(const CoordinatorClient& client, const v1::WatchJobsRequest& request);
  ~WatchStream();

  // Waits up to `wait`. Unset: nothing came, or the stream has ended and all of it was read.
  std::optional<v1::WatchJobsResponse> Next(absl::Duration wait);
  // Set when the stream has ended and all of it was read; before CoordinatorClient::Told.
  std::optional<absl::Status> End();
  void Cancel() { stream_->Cancel(); }

 private:
  void Read();

  const std::unique_ptr<ResponseStream<v1::WatchJobsResponse>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<v1::WatchJobsResponse> messages_;
  std::optional<absl::Status> end_;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_WAIT_H_

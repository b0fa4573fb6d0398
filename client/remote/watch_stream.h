// One stream of changes, read by a thread of its own, so that whoever shows them can also draw and
// let go.
//
// Ownership: owns the call and the thread; borrows the client. Thread-safety: Cancel from anywhere,
// the rest from one thread.
#ifndef NIBBLE_CLIENT_REMOTE_WATCH_STREAM_H_
#define NIBBLE_CLIENT_REMOTE_WATCH_STREAM_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/time/time.h"
#include "client/remote/coordinator_client.h"

namespace nibble {

class WatchStream {
 public:
  WatchStream(CoordinatorClient& client, const v1::WatchJobsRequest& request);
  ~WatchStream();

  // Waits so long at most. Unset: nothing came, or the stream has ended and all of it was read.
  std::optional<v1::WatchJobsResponse> Next(absl::Duration wait);
  // Set when the stream has ended and all of it was read.
  std::optional<grpc::Status> End();
  void Cancel() { context_->TryCancel(); }

 private:
  void Read();

  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<grpc::ClientReaderInterface<v1::WatchJobsResponse>> reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<v1::WatchJobsResponse> messages_;
  std::optional<grpc::Status> end_;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WATCH_STREAM_H_

// StreamLogs: lines of ranks, or of the event log of rank 0's worker, read from their workers.
//
// Finished attempts are read rank after rank, by number. A followed job is read from all ranks at
// once, in order of arrival, attempt after attempt until the job is finished. Each attempt of a
// followed event log begins at its first line again, because a worker appends to one log. One
// response per rank is held, and the next is requested only after it was written: a slow caller
// slows down the workers and costs no memory. One that takes nothing for `stall_ms` is cut off with
// RESOURCE_EXHAUSTED, and its workers are not read any more.
//
// A trace is requested from each worker of the running attempt at once, and its lines are those of
// a JSON array, of one worker after the other or interleaved.
//
// A worker that has lines to send but is silent for `silence_ms`, or whose connection breaks, is
// named in UNAVAILABLE, after the lines of the others. While a followed attempt is running, such a
// worker is retried until it answers or the attempt ends; the stream then continues with the
// next attempt.
//
// Ownership: borrows the controller, which outlives every call. Thread-safety: as gRPC requires.
#ifndef NIBBLE_SERVER_SERVICE_LOG_REACTOR_H_
#define NIBBLE_SERVER_SERVICE_LOG_REACTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"

namespace grpc {
class CallbackServerContext;
class Channel;
template <class Response>
class ServerWriteReactor;
}  // namespace grpc

namespace nibble {

class Controller;
class Credentials;
class OpenCall;
namespace v1 {
class StreamLogsRequest;
class StreamLogsResponse;
}  // namespace v1

struct LogLimits {
  int streams = 64;             // open at once
  int followed_ranks = 1024;    // read at once by one stream
  int64_t silence_ms = 10'000;  // of a worker that has lines to send
  int64_t look_ms = 200;        // interval between checks of the job's state
  int64_t stall_ms = 120'000;   // a caller for whom lines wait must take some within this time
  int64_t reason_ms = 10'000;   // then the line that waits is dropped; as of GatedStream
};

// The streams that are open, and their readers of workers' logs. Thread-safety: any thread.
class LogStreams {
 public:
  // Counts one more stream, until Leave(); false if that is more than `most`.
  bool Enter(int most) { return open_.fetch_add(1) < most; }
  void Leave() { open_.fetch_sub(1); }

  void AddReader();
  // With its channel, whose last user it was.
  void RemoveReader(std::shared_ptr<grpc::Channel> channel);
  // Waits until no reader is left; all streams have ended.
  void AwaitReaders();

 private:
  std::atomic<int> open_{0};
  Mutex mutex_;
  CondVar changed_;
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the reader that ended last. gRPC's threads for callbacks end with the last channel or server
  // that uses them, and wait for one another: a thread that destroys that channel itself would go
  // on with freed memory. So none does: AwaitReaders destroys it in its caller's thread.
  std::shared_ptr<grpc::Channel> last_ ABSL_GUARDED_BY(mutex_);
};
// Shared by the server, the service, its streams and their readers.
using OpenStreams = std::shared_ptr<LogStreams>;

// The stream that serves the request; ends at once with `refused` unless that is OK. Keeps `place`
// until it is over, and ends with it. `to_workers`: of its channels.
grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamRankLogs(
    grpc::CallbackServerContext& context, Controller& controller, const LogLimits& limits,
    const OpenStreams& open, std::shared_ptr<const Credentials> to_workers,
    const v1::StreamLogsRequest& request, const absl::Status& refused,
    std::shared_ptr<OpenCall> place);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_LOG_REACTOR_H_

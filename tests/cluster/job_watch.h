// For tests: single calls to a coordinator (CoordinatorStub), and a stream of changes of all its
// jobs, across its restarts, that tests can wait on (JobWatch). This header does not include gRPC.
//
// Ownership: each owns its channel, a JobWatch also one thread. Thread-safety: all methods.
#ifndef NIBBLE_TESTS_CLUSTER_JOB_WATCH_H_
#define NIBBLE_TESTS_CLUSTER_JOB_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/remote/rpcs.h"
#include "common/mutex.h"
#include "google/protobuf/message.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace nibble {

// A channel that reconnects to a coordinator as soon as it is back.
std::shared_ptr<grpc::Channel> QuickChannel(const std::string& address);

class CoordinatorStub {
 public:
  struct CallOptions {
    bool waits_for_ready = false;  // otherwise Unavailable at once if nothing listens
    std::chrono::system_clock::time_point deadline = std::chrono::system_clock::time_point::max();
  };

  explicit CoordinatorStub(const std::string& address) : channel_(QuickChannel(address)) {}

  // Makes one attempt.
  template <class Request, class Response>
  absl::Status Call(const Rpc<Request, Response>& rpc, const Request& request, Response* response,
                    const CallOptions& options = {}) const {
    return CallMethod(rpc.method, request, *response, options);
  }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  absl::Status CallMethod(const std::string& method, const google::protobuf::Message& request,
                          google::protobuf::Message& response, const CallOptions& options) const;

  const std::shared_ptr<grpc::Channel> channel_;
};

class JobWatch {
 public:
  // What the stream reported about one job.
  struct Seen {
    v1::Job job;
    std::map<int64_t, v1::JobEvent> events;     // by number
    std::map<int64_t, v1::StepSample> samples;  // by step, the latest of each
    std::map<int64_t, int> times_sampled;       // by step
  };

  explicit JobWatch(const std::string& address);
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // Waits until `holds` is true for the job; false on a timeout. `holds` must not block.
  bool Await(const std::string& job, const std::function<bool(const Seen&)>& holds,
             std::chrono::milliseconds patience);
  bool AwaitState(const std::string& job, v1::JobState state, std::chrono::milliseconds patience);
  // Waits until a rank has made this step or a later one.
  bool AwaitStep(const std::string& job, int64_t step, std::chrono::milliseconds patience);
  Seen Of(const std::string& job) const;

 private:
  void Follow();

  const std::shared_ptr<grpc::Channel> channel_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool end_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<std::string, Seen> seen_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_JOB_WATCH_H_

// For tests: follows every job of a coordinator from the first word on, over the coordinator's
// restarts, and lets a test wait until something was told.
//
// Ownership: owns its channel and one thread. Thread-safety: all methods.
#ifndef NIBBLE_TESTS_CLUSTER_JOB_WATCH_H_
#define NIBBLE_TESTS_CLUSTER_JOB_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/client_context.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {

class JobWatch {
 public:
  // What was told of one job.
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

  // Until it holds of the job; false where it does not in time. `holds` must not wait.
  bool Await(const std::string& job, const std::function<bool(const Seen&)>& holds,
             std::chrono::milliseconds patience);
  bool AwaitState(const std::string& job, v1::JobState state, std::chrono::milliseconds patience);
  // A rank has made this step, or a later one.
  bool AwaitStep(const std::string& job, int64_t step, std::chrono::milliseconds patience);
  Seen Of(const std::string& job) const;

 private:
  void Follow();

  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool end_ = false;
  grpc::ClientContext* call_ = nullptr;
  std::map<std::string, Seen> seen_;
  std::thread thread_;
};

// A channel that finds a coordinator again as soon as it is there.
std::shared_ptr<grpc::Channel> QuickChannel(const std::string& address);

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_JOB_WATCH_H_

// A coordinator for tests: a controller over a store in memory that can fail, with a manual clock.
// Restart simulates the end of the process and the start of the next one on the same store.
//
// Ownership: owns everything. Thread-safety: none beyond the controller's.
#ifndef NIBBLE_SERVER_CONTROLLER_TESTING_H_
#define NIBBLE_SERVER_CONTROLLER_TESTING_H_

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/store/store_testing.h"

namespace nibble {

// Makes a change and waits for its answer. Must not be called from a callback.
template <class Response, class Request>
absl::StatusOr<Response> ChangeAndWait(Controller& controller, const Request& request,
                                       const std::string& author) {
  // Shared: the callback may still use it when the wait is over.
  const auto answer = std::make_shared<std::promise<absl::StatusOr<Response>>>();
  controller.requests().Change<Response>(
      request, author,
      [answer](absl::StatusOr<Response> response) { answer->set_value(std::move(response)); });
  return answer->get_future().get();
}

// For ControllerOptions::fresh_id.
inline std::string FixedId() { return "27c4934527c5ca44567c36dd41a7ec8e"; }

class TestCoordinator {
 public:
  // `store`: directory of a store on disk, which outlives this; empty: in memory.
  explicit TestCoordinator(ControllerOptions options = {}, std::string store = "");
  ~TestCoordinator();

  ManualClock clock{1'000'000'000};
  Controller& controller() { return *controller_; }
  FaultyStore& store() { return *store_; }
  absl::Status stopped() const { return stopped_; }  // the error that stopped the store

  // A new controller starts on the durable state.
  void Restart();
  // Ticks and settles, twice: the second tick plans with the results of the first.
  void Tick();

  template <class Response, class Request>
  absl::StatusOr<Response> Do(Request request) {
    if (request.request_id().empty()) {
      request.set_request_id("request-" + std::to_string(++requests_));
    }
    return ChangeAndWait<Response>(*controller_, request, "ann");
  }

  // A spec of 1000 steps of 16 sequences.
  static std::string Spec(const std::string& name, int ranks, const std::string& more = "");
  // Submits a job; returns its id.
  std::string Submit(int ranks = 2, const std::string& name = "train",
                     const std::string& more = "");
  v1::Job Job(const std::string& id);

 private:
  void Open();
  absl::StatusOr<std::unique_ptr<nibble::Store>> OpenStore();

  ControllerOptions options_;
  const std::string directory_;
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  std::unique_ptr<FaultyStore> store_;
  std::unique_ptr<Controller> controller_;
  absl::Status stopped_;
  int requests_ = 0;
};

// A simulated worker daemon that follows its desired state.
class TestWorker {
 public:
  TestWorker(TestCoordinator& coordinator, const std::string& name, int slots,
             int64_t incarnation = 1);

  // Sends `report`; returns the stream's status.
  absl::Status Report();
  // Fetches the desired state without a report.
  void Fetch();
  // Reports, then adopts the desired state: its ranks run, others end.
  void Obey(int64_t step = 0);
  // Reports, then runs a new job with `ranks` ranks up to a step; returns its id.
  std::string RunJob(int ranks, int64_t step = 0);
  // Reconnects, as after a restart of the coordinator.
  void Reconnect();
  // Adds a durable shard of its first gang for each rank here.
  void Store(int64_t step);

  v1::ConnectRequest report;
  v1::ConnectResponse desired;
  // Its claims that were refused, each once.
  const std::vector<std::string>& refused() const { return *refused_; }
  // How often it was notified of a new desired state.
  int notified() const { return *notified_; }

 private:
  TestCoordinator& coordinator_;
  std::shared_ptr<WorkerSession> session_;
  // Shared with the sessions, which may notify later than this lives.
  const std::shared_ptr<std::atomic<int>> notified_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::vector<std::string>> refused_ =
      std::make_shared<std::vector<std::string>>();
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_TESTING_H_

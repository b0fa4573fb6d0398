// A coordinator for tests: a controller over a store in memory that can fail, and a clock that
// stands still unless moved. Restart plays through the end of the process and its next beginning.
//
// Ownership: owns all of it. Thread-safety: none of its own; the controller's is its own.
#ifndef NIBBLE_SERVER_CONTROLLER_TESTING_H_
#define NIBBLE_SERVER_CONTROLLER_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/store/faulty_store.h"
#include "server/store/memory_store.h"

namespace nibble {

class TestCoordinator {
 public:
  explicit TestCoordinator(ControllerOptions options = {});
  ~TestCoordinator();

  ManualClock clock{1'000'000'000};
  Controller& controller() { return *controller_; }
  FaultyStore& store() { return *store_; }
  absl::Status stopped() const { return stopped_; }  // what the store stopped with

  // The process ends, and another begins on what is durable.
  void Restart();
  // Tick, and what it began is durable; twice, so that what the first began is planned with.
  void Tick();

  template <class Response, class Request>
  absl::StatusOr<Response> Do(Request request) {
    if (request.request_id().empty()) {
      request.set_request_id("request-" + std::to_string(++requests_));
    }
    return controller_->ChangeAndWait<Response>(request, "ann");
  }

  // A spec of 1000 steps of 16 sequences.
  static std::string Spec(const std::string& name, int ranks, const std::string& more = "");
  // Its id.
  std::string Submit(int ranks = 2, const std::string& name = "train",
                     const std::string& more = "");
  v1::Job Job(const std::string& id);

 private:
  void Open();

  ControllerOptions options_;
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  std::unique_ptr<FaultyStore> store_;
  std::unique_ptr<Controller> controller_;
  absl::Status stopped_;
  int requests_ = 0;
};

// A worker daemon as its reports go: it does what it is told.
class TestWorker {
 public:
  TestWorker(TestCoordinator& coordinator, const std::string& name, int slots,
             int64_t incarnation = 1);

  // Says what it has; the stream's status.
  absl::Status Report();
  // What it would be told now, without a report.
  void Ask();
  // Reports, then takes what is desired: ranks that are to run do, others are gone.
  void Obey(int64_t step = 0);
  // Reports, then runs a job of so many ranks up to a step; its id.
  std::string RunJob(int ranks, int64_t step = 0);
  // Reconnects, as after a restart of the coordinator.
  void Reconnect();
  // A durable shard of its first gang, of each rank here.
  void Store(int64_t step);

  v1::ConnectRequest report;
  v1::ConnectResponse desired;
  int notified = 0;

 private:
  TestCoordinator& coordinator_;
  std::shared_ptr<WorkerSession> session_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_TESTING_H_

// A real coordinator without its network, on a store in memory that can be copied.
//
// Ownership: owns the controller and shares the disk. Thread-safety: one thread.
#ifndef NIBBLE_TESTS_HISTORIES_SIMULATED_COORDINATOR_H_
#define NIBBLE_TESTS_HISTORIES_SIMULATED_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/clock.h"
#include "server/store/store_testing.h"

namespace nibble {

class Controller;
class WorkerSession;

using Disk = std::shared_ptr<MemoryDisk>;

// A copy of the store, which nobody has open.
Disk CopyOf(const Disk& disk);

class SimulatedCoordinator {
 public:
  using Ids = std::function<std::string()>;  // 32 random digits
  // Starts on the disk.
  SimulatedCoordinator(Disk disk, const ManualClock& clock, Ids ids, bool restored);
  ~SimulatedCoordinator();

  const Disk& disk() const { return disk_; }
  // Of its store.
  int64_t epoch() const;
  // The latest step of a committed checkpoint of the job in its catalogue; -1: none.
  int64_t CommittedStep(const std::string& job) const;
  // The catalogue's checkpoints of the job, and who stores their shards.
  std::string Catalogue(const std::string& job) const;
  // Whether it refuses every change because another one continues its store.
  bool replaced() const;

  std::string Submit(const std::string& spec);
  // Updates that change nothing but their number.
  void MakeUpdates(const std::string& job, int count);
  void Tick();

  using Session = std::shared_ptr<WorkerSession>;
  Session Connect();
  // Takes a report; `desired` is the answer, unless the report is refused.
  absl::Status Exchange(const Session& session, const v1::ConnectRequest& report,
                        v1::ConnectResponse& desired);

 private:
  template <class Response, class Request>
  absl::StatusOr<Response> Do(Request request);

  const Disk disk_;
  int64_t requests_ = 0;
  const Ids ids_;
  std::unique_ptr<MemoryStore> store_;
  std::unique_ptr<Controller> controller_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_HISTORIES_SIMULATED_COORDINATOR_H_

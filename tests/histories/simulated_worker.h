// A worker daemon without processes and network: its real records of stores and orders, its real
// registry of checkpoints on a disk, and ranks that only have a step.
//
// Ownership: owns the registry; its directory outlives it, so that a later life finds it.
// Thread-safety: one thread.
#ifndef NIBBLE_TESTS_HISTORIES_SIMULATED_WORKER_H_
#define NIBBLE_TESTS_HISTORIES_SIMULATED_WORKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/clock.h"
#include "tests/histories/simulated_coordinator.h"
#include "tests/histories/worker_trash.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/data_directory.h"

namespace nibble {

// Step, attempt and rank of a job's shard.
using ShardId = std::tuple<std::string, int64_t, int64_t, int32_t>;

// The sealed shards below a worker's directory, wherever they are: stored or in its trash.
std::set<ShardId> SealedShards(const std::string& directory);

class SimulatedWorker {
 public:
  struct Gang {
    v1::DesiredGang order;
    v1::StoreIdentity store;  // that ordered it
    int64_t step = 0;         // the next one
    bool stopped = false;
  };
  // Whether some worker with this address stores the shard, and can be read.
  using Source = std::function<bool(const std::string& address, const v1::DesiredReplica& shard)>;

  // `trash_bytes`: as in WorkerTrash.
  SimulatedWorker(const std::string& name, std::string directory, const ManualClock& clock,
                  int64_t incarnation, int64_t trash_bytes, Source source);
  ~SimulatedWorker();

  const std::string& name() const { return name_; }
  const std::string& directory() const { return directory_; }
  std::map<std::string, Gang>& gangs() { return gangs_; }  // by job
  const std::set<std::string>& killed() const { return killed_; }

  // Reports to the coordinator, over a new stream if the last was to another one, and obeys what it
  // answers.
  void Exchange(const std::shared_ptr<SimulatedCoordinator>& coordinator);
  // The rank's shard of a checkpoint is sealed, and will be reported.
  void Store(const std::string& job, int64_t step, int64_t attempt, int32_t rank, int32_t world);
  bool Has(const v1::DesiredReplica& shard) const;

 private:
  v1::ConnectRequest Report();
  void Obey(const v1::ConnectResponse& desired);
  void ObeyGangs(const v1::ConnectResponse& desired);
  void OpenJobs();

  const std::string name_;
  const std::string directory_;
  const Source source_;
  const int64_t incarnation_;
  std::unique_ptr<Provenance> provenance_;
  std::unique_ptr<WorkerTrash> trash_;
  std::unique_ptr<CheckpointRegistry> registry_;
  std::map<std::string, Gang> gangs_;
  std::set<std::string> killed_;  // ranks that a desired state ended: job and attempt

  std::weak_ptr<SimulatedCoordinator> connected_;
  SimulatedCoordinator::Session session_;
  int64_t number_ = 0;
  int64_t desired_number_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_HISTORIES_SIMULATED_WORKER_H_

// Processes of ranks that have lost another rank of their group and wait for the job's next
// attempt, by slot. A gang that is closed adds them; one that starts takes those of its job, and
// ends any other in its slots: a slot has one process.
//
// Ownership: owns the links over which the processes wait; borrows the supervisor, which owns the
// processes. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_STANDBY_RANKS_H_
#define NIBBLE_WORKER_AGENT_STANDBY_RANKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "worker/agent/process_supervisor.h"
#include "worker/link/link_host.h"

namespace nibble {

class StandbyRanks {
 public:
  struct Rank {
    std::string job;
    std::string process;             // the supervisor's name of it
    int32_t number = 0;              // in its last attempt
    std::shared_ptr<LinkHost> link;  // of that attempt; retired
  };

  explicit StandbyRanks(ProcessSupervisor* supervisor) : supervisor_(*supervisor) {}

  void Add(int32_t slot, Rank rank);
  // The process in the slot, if it is one of the job and runs. Any other there is killed; returns
  // when it has ended.
  std::optional<Rank> Take(int32_t slot, const std::string& job);
  // Forgets processes that have ended.
  void Prune();
  size_t size() const;

 private:
  // Ends the rank's process, and frees its name.
  void End(const Rank& rank);

  ProcessSupervisor& supervisor_;
  mutable Mutex mutex_;
  std::multimap<int32_t, Rank> ranks_ ABSL_GUARDED_BY(mutex_);  // by slot
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_STANDBY_RANKS_H_

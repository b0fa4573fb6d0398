// Starts processes and supervises them to their end. Each runs in its own process group and writes
// to a bounded log; its exit is reported with the reason, and its group is killed with it.
//
// No process outlives the daemon, because a restarted daemon is a new incarnation, to which the
// coordinator assigns none of the old one's ranks. The kernel kills a rank when the thread that
// started it ends (SpawnOptions::dies_with_thread; that thread lives until the rank is reaped).
// That does not apply to a rank's children, or to a rank that changed its credentials; therefore a
// record is on disk before the program runs, which KillLeftovers (common/process/process.h) reads
// when the daemon starts again. Ranks do outlive the coordinator.
//
// Ownership: owns the processes and a thread for each; the destructor kills running processes.
// Thread-safety: all methods from any thread; `ended` is called from a process's thread with no
// lock taken.
#ifndef NIBBLE_WORKER_AGENT_PROCESS_SUPERVISOR_H_
#define NIBBLE_WORKER_AGENT_PROCESS_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "worker/agent/rank_log.h"

namespace nibble {

// How a process ended.
struct ProcessExit {
  int exit_code = 0;           // if signal is 0
  int signal = 0;              // that killed it
  bool out_of_memory = false;  // killed by the kernel for lack of memory
  bool killed = false;         // this daemon sent the SIGKILL
  std::string log_tail;        // the end of its output

  bool ok() const { return exit_code == 0 && signal == 0; }
};
// "was killed by signal 9 (Killed): out of memory", "ended with exit code 1"
std::string Describe(const ProcessExit& exit);

class ProcessSupervisor {
 public:
  struct Options {
    std::string record_directory;  // exists
    // The number of processes that the kernel has killed so far for lack of memory; OomKills except
    // in tests.
    std::function<int64_t()> oom_kills;
    std::function<void(const std::string& name)> ended;  // may be null
  };
  struct Program {
    std::string name;                                // unique among running processes; no slash
    std::vector<std::string> arguments;              // [0] is the program's path
    std::map<std::string, std::string> environment;  // overrides the daemon's
    std::string log_path;
    RankLog::Limits log_limits;
    std::vector<int> cpus;  // as SpawnOptions
    int memory_node = -1;   // as SpawnOptions
  };

  explicit ProcessSupervisor(Options options);
  ~ProcessSupervisor();
  ProcessSupervisor(const ProcessSupervisor&) = delete;
  ProcessSupervisor& operator=(const ProcessSupervisor&) = delete;

  // Returns once the program runs. AlreadyExists if the name is in use; the errors of SpawnProcess,
  // such as NotFound or PermissionDenied for the program. After an error nothing is left behind.
  absl::Status Start(const Program& program);

  // Gives a running process another name and log. NotFound unless it runs, AlreadyExists if the
  // name is in use, or an error of the log or of the record; after an error it keeps its name.
  absl::Status Rename(const std::string& name, const std::string& new_name,
                      const std::string& log_path);

  // SIGKILL to its group. NotFound if no such process runs.
  absl::Status Kill(const std::string& name);
  // Sends a signal to the process alone, not to its group.
  absl::Status Signal(const std::string& name, int signal);

  // Nullopt while it runs. NotFound if it was never started or was forgotten.
  absl::StatusOr<std::optional<ProcessExit>> ExitOf(const std::string& name) const;
  // Waits for its end, and frees its name. NotFound as ExitOf.
  absl::StatusOr<ProcessExit> AwaitEnd(const std::string& name);
  // NotFound unless it runs.
  absl::StatusOr<pid_t> PidOf(const std::string& name) const;
  std::shared_ptr<const RankLog> LogOf(const std::string& name) const;  // null if there is none
  // Frees the name of a process that has ended. FailedPrecondition while it runs.
  absl::Status Forget(const std::string& name);
  std::vector<std::string> Names() const;

 private:
  struct Process;

  std::shared_ptr<Process> Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The thread of a process, and its steps.
  void Run(Process& process);
  absl::Status Spawn(Process& process);
  void CollectOutput(Process& process);  // until the process has ended
  static std::shared_ptr<RankLog> LogOf(Process& process);
  ProcessExit Reap(Process& process);  // without the log's tail and the out-of-memory flag

  const Options options_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Process>> processes_ ABSL_GUARDED_BY(mutex_);
};

// The counter oom_kill of this process's cgroup; 0 if the kernel does not report it.
int64_t OomKills();

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PROCESS_SUPERVISOR_H_

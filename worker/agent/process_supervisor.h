// Starts processes and sees to their end: each in a process group of its own, what it writes in a
// bounded log, how it ended told with a reason, and nothing of it left over.
//
// No process outlives the daemon. A daemon that comes back is a new incarnation, to which the
// coordinator gives none of the old one's ranks; so the kernel kills a rank when the thread that
// started it ends (PR_SET_PDEATHSIG; that thread lives until the rank is reaped), and for what that
// cannot reach, a rank's children, or a rank that changed its credentials, there is a record on
// disk before the program runs, which the next life's KillLeftovers (process_record.h) reads.
// Ranks do outlive the *coordinator*: nothing here knows of it.
//
// Ownership: owns the processes and a thread for each; the destructor kills what runs.
// Thread-safety: all methods from any thread; `ended` is called from a process's thread with
// nothing locked.
#ifndef NIBBLE_WORKER_AGENT_PROCESS_SUPERVISOR_H_
#define NIBBLE_WORKER_AGENT_PROCESS_SUPERVISOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/agent/rank_log.h"

namespace nibble {

// How a process ended.
struct ProcessExit {
  int exit_code = 0;           // if signal is 0
  int signal = 0;              // that ended it
  bool out_of_memory = false;  // by the kernel, for want of memory
  bool terminated = false;     // it had been told to end before it did
  bool killed = false;         // this daemon sent the SIGKILL
  std::string log_tail;        // the last that it wrote

  bool ok() const { return exit_code == 0 && signal == 0; }
};
// "was killed by signal 9 (Killed): out of memory", "ended with exit code 1"
std::string Describe(const ProcessExit& exit);

class ProcessSupervisor {
 public:
  struct Options {
    std::string record_directory;  // exists
    // Processes that the kernel has killed for want of memory, so far; OomKills unless tested.
    std::function<int64_t()> oom_kills;
    std::function<void(const std::string& name)> ended;  // may be null
  };
  struct Program {
    std::string name;                                // unique among those that run; no slash
    std::vector<std::string> arguments;              // [0] is the program's path
    std::map<std::string, std::string> environment;  // goes over the daemon's
    std::string log_path;
    RankLog::Limits log_limits;
  };

  explicit ProcessSupervisor(Options options);
  ~ProcessSupervisor();
  ProcessSupervisor(const ProcessSupervisor&) = delete;
  ProcessSupervisor& operator=(const ProcessSupervisor&) = delete;

  // Runs it. AlreadyExists for a name that runs; NotFound and the like for a program that cannot be
  // executed; then nothing is left.
  absl::Status Start(const Program& program);

  // SIGTERM now, SIGKILL to the group after the grace. Saying it again may only bring the end
  // nearer. NotFound for what does not run.
  absl::Status Terminate(const std::string& name, std::chrono::milliseconds grace);
  // SIGKILL to its group.
  absl::Status Kill(const std::string& name);
  // To the process alone.
  absl::Status Signal(const std::string& name, int signal);

  // Nullopt while it runs. NotFound for what was never started or is forgotten.
  absl::StatusOr<std::optional<ProcessExit>> ExitOf(const std::string& name) const;
  absl::StatusOr<pid_t> PidOf(const std::string& name) const;
  std::shared_ptr<const RankLog> LogOf(const std::string& name) const;  // null as NotFound
  // Of one that has ended: its name is free again. FailedPrecondition while it runs.
  absl::Status Forget(const std::string& name);
  std::vector<std::string> Names() const;

 private:
  struct Process;

  std::shared_ptr<Process> Find(const std::string& name) const;
  void Run(const std::shared_ptr<Process>& process);
  void Watch(Process& process);

  const Options options_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Process>> processes_;  // guarded by mutex_
};

// oom_kill of this process's cgroup; 0 where the kernel does not say.
int64_t OomKills();

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PROCESS_SUPERVISOR_H_

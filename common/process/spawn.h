// Starts programs as child processes.
//
// A child gets standard input, output and error and no other descriptor, no ignored or blocked
// signals unless asked for, and an environment that overrides this process's. SpawnProcess returns
// once the program runs, so that every error of starting it is reported to the caller.
//
// Ownership: the caller reaps the child (waitpid); descriptors in the options are borrowed.
// Thread-safety: all functions; no thread may change this process's environment during
// SpawnProcess.
#ifndef NIBBLE_COMMON_PROCESS_SPAWN_H_
#define NIBBLE_COMMON_PROCESS_SPAWN_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process/process.h"

namespace nibble {

struct SpawnOptions {
  enum class Group {
    kInherit,  // that of this process: a terminal's Ctrl-C reaches both
    kOwn,      // the child leads a process group
    kSession,  // the child leads a session, and a process group, without a terminal
  };
  static constexpr int kInherit = -1;  // this process's descriptor
  static constexpr int kNull = -2;     // /dev/null

  std::vector<std::string> arguments;
  std::string program;                             // path; empty: arguments[0]
  std::map<std::string, std::string> environment;  // overrides this process's variables
  int input = kNull;
  int output = kInherit;
  int error = kInherit;
  Group group = Group::kInherit;
  // SIGKILL when the calling thread ends, even if its process lives on. The kernel forgets this
  // when the child changes its credentials, and does not apply it to the child's own children.
  bool dies_with_thread = false;
  const sigset_t* blocked_signals = nullptr;  // null: none
  std::vector<int> cpus;  // that the child may run on (sched_setaffinity); empty: as this thread
  int memory_node = -1;   // NUMA node whose memory it prefers (set_mempolicy); -1: as this thread
  // Called in this process before the program runs. If it returns an error, the program never runs
  // and SpawnProcess returns that error.
  std::function<absl::Status(pid_t child)> before_program = nullptr;
};

// The errors of the system calls (ErrnoError), such as NotFound or PermissionDenied for the
// program; after an error there is no child.
absl::StatusOr<pid_t> SpawnProcess(const SpawnOptions& options);

struct DetachedProgram {
  std::vector<std::string> arguments;              // [0] is the program's path
  std::map<std::string, std::string> environment;  // overrides this process's
  std::string log_path;                            // its directory exists
};

// Starts a process that outlives this one: it leads its own session, and its output is appended to
// a log. Nobody owns it; it is found again by its identity. Errors as SpawnProcess.
absl::StatusOr<ProcessIdentity> StartDetached(const DetachedProgram& program);

// Whether this process may set memory policies; containers often forbid it. Sets the calling
// thread's policy to the default.
bool MaySetMemoryPolicy();

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_SPAWN_H_

// Processes that outlive the one that starts them: each in its own session, without a terminal, its
// output appended to a log. They are identified by more than their process id (ProcessIdentity), so
// that a process which reuses the id is never signalled. Also what such processes need: a free
// port, and the end of a log for error messages.
//
// Ownership: values; nobody owns a detached process. Thread-safety: all functions. A free port may
// be taken by the time it is used.
#ifndef NIBBLE_CLIENT_CLUSTER_LOCAL_PROCESSES_H_
#define NIBBLE_CLIENT_CLUSTER_LOCAL_PROCESSES_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/process/process.h"

namespace nibble {

struct DetachedProgram {
  std::vector<std::string> arguments;              // [0] is the program's path
  std::map<std::string, std::string> environment;  // overrides this process's
  std::string log_path;                            // its directory exists
};

// An error, such as NotFound, if the program cannot be executed; then no process is left.
absl::StatusOr<ProcessIdentity> StartDetached(const DetachedProgram& program);

// False if it has ended, reaped or not, even if another process has its id now.
bool IsAlive(const ProcessIdentity& identity);

// Does nothing if it has ended.
void SignalProcess(const ProcessIdentity& identity, int signal);

// Waits up to `patience` until one of them has ended; true if one has. An empty list: sleeps.
bool AwaitAnyEnd(absl::Span<const ProcessIdentity> identities, std::chrono::milliseconds patience);

// SIGTERM, and SIGKILL after the grace; returns when the process is gone. True if SIGTERM sufficed.
// DeadlineExceeded if it survives SIGKILL, as in an uninterruptible sleep.
absl::StatusOr<bool> EndProcess(const ProcessIdentity& identity, std::chrono::milliseconds grace);

bool IsPortFree(int port);

// Below the ephemeral range: an outgoing connection could take the port of a program that is
// restarting, and a client that connects to it could even connect to itself.
absl::StatusOr<int> ChooseFreePort();

// At most twelve whole lines; a remark if there are none.
std::string LogTail(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_LOCAL_PROCESSES_H_

// Processes that outlive the one that starts them: each in a session of its own, without a
// terminal, what it writes appended to a log. They are known by more than their number
// (process_record.h), so that a number which another process has by now is never signalled.
//
// Ownership: values; nobody owns a process that is detached. Thread-safety: all functions.
#ifndef NIBBLE_CLIENT_CLUSTER_DETACHED_PROCESS_H_
#define NIBBLE_CLIENT_CLUSTER_DETACHED_PROCESS_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/process/process_record.h"

namespace nibble {

struct DetachedProgram {
  std::vector<std::string> arguments;              // [0] is the program's path
  std::map<std::string, std::string> environment;  // goes over this process's
  std::string log_path;                            // its directory exists
};

// NotFound and the like for a program that cannot be executed; then nothing is left.
absl::StatusOr<ProcessIdentity> StartDetached(const DetachedProgram& program);

// False for one that has ended, reaped or not, and for another that has its number.
bool IsAlive(const ProcessIdentity& identity);

// Nothing happens to one that has ended.
void SignalProcess(const ProcessIdentity& identity, int signal);

// Waits until one of them has ended, or for so long; true where one has. None: waits in vain.
bool AwaitAnyEnd(absl::Span<const ProcessIdentity> identities, std::chrono::milliseconds patience);

// SIGTERM, and SIGKILL after the grace; returns when it is gone. True where it went by itself.
// DeadlineExceeded where the kernel does not let go of it.
absl::StatusOr<bool> EndProcess(const ProcessIdentity& identity, std::chrono::milliseconds grace);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_DETACHED_PROCESS_H_

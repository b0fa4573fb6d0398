// Other processes: which one a process id refers to, waiting for them, signalling them, and records
// of them on disk.
//
// A process id alone may have been reused; a process id with its start time and the boot id has
// not. A daemon that restarts finds by the records which processes of its earlier life still run.
//
// Ownership: a ProcessHandle owns its descriptor, not the process; the rest are values.
// Thread-safety: all functions; a ProcessHandle's const methods from any thread.
#ifndef NIBBLE_COMMON_PROCESS_PROCESS_H_
#define NIBBLE_COMMON_PROCESS_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/descriptor.h"

namespace nibble {

struct ProcessIdentity {
  int64_t pid = 0;
  int64_t start_ticks = 0;  // since the boot
  std::string boot_id;

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

// NotFound if there is no such process; ResourceExhausted if no descriptor is left to ask.
absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);

// A pidfd: it refers to the same process for as long as it is open. If no descriptor is left for
// it, the handle is invalid, but does not take the process for ended while one has its id.
class ProcessHandle {
 public:
  ProcessHandle() = default;
  // For a child that is not reaped yet, or with IdentifyProcess afterwards. Invalid, with errno
  // set, if there is no such process or no descriptor is left.
  explicit ProcessHandle(pid_t pid);
  // Invalid if the process has ended and was reaped, even if another process has its id now.
  explicit ProcessHandle(const ProcessIdentity& identity);

  bool valid() const { return fd() >= 0; }
  // Readable (poll) once the process has ended; negative if invalid.
  int fd() const { return fd_.get(); }

  // Waits up to `patience`; true if the process has ended, or there was none.
  bool AwaitEnd(std::chrono::milliseconds patience) const;
  // Does nothing if the process has ended, or the handle is invalid.
  void Signal(int signal) const;

 private:
  OwnedDescriptor fd_;
  pid_t unseen_ = 0;  // the process, if no descriptor was left for it
};

// False if it has ended, reaped or not, even if another process has its id now. Reaps it if it is
// an ended child of this process.
bool IsAlive(const ProcessIdentity& identity);

// Does nothing if it has ended.
void SignalProcess(const ProcessIdentity& identity, int signal);

// Waits up to `patience` until one of them has ended; true if one has. An empty list: sleeps.
bool AwaitAnyEnd(absl::Span<const ProcessIdentity> identities, std::chrono::milliseconds patience);

// SIGTERM, and SIGKILL after the grace; returns when the process is gone. True if SIGTERM sufficed.
// DeadlineExceeded if it survives SIGKILL, as in an uninterruptible sleep.
absl::StatusOr<bool> EndProcess(const ProcessIdentity& identity, std::chrono::milliseconds grace);

// Writes `name`.process in the directory, durably. Names contain no slash.
absl::Status WriteProcessRecord(const std::string& directory, const std::string& name,
                                const ProcessIdentity& identity);
void RemoveProcessRecord(const std::string& directory, const std::string& name);

struct Leftover {
  std::string name;
  ProcessIdentity identity;
  bool killed = false;  // false: it had already ended
};
// Kills the process groups of all records whose processes still run, waits for their end, and
// removes the records. An unreadable record is an error, returned after the others were handled.
// DeadlineExceeded, naming the process, if one does not end.
absl::StatusOr<std::vector<Leftover>> KillLeftovers(const std::string& directory,
                                                    std::chrono::milliseconds patience);

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_PROCESS_H_

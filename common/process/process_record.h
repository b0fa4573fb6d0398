// Processes as the disk remembers them, so that a daemon which comes back finds those that its
// earlier life has left behind. A pid alone may be another's by now; with the time at which it
// began, and the boot in which that was, it is not.
//
// Ownership: values. Thread-safety: functions of the disk and of /proc.
#ifndef NIBBLE_COMMON_PROCESS_PROCESS_RECORD_H_
#define NIBBLE_COMMON_PROCESS_PROCESS_RECORD_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

struct ProcessIdentity {
  int64_t pid = 0;
  int64_t start_ticks = 0;  // since the boot
  std::string boot_id;

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

// NotFound where there is no such process.
absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);

// Durable on return: `name`.process in the directory. Names have no slash.
absl::Status WriteProcessRecord(const std::string& directory, const std::string& name,
                                const ProcessIdentity& identity);
void RemoveProcessRecord(const std::string& directory, const std::string& name);

struct Leftover {
  std::string name;
  ProcessIdentity identity;
  bool killed = false;  // false: it was gone already
};
// Kills the process groups of all records whose processes still run, waits until they are gone, and
// removes the records. A record that cannot be read is an error, after the others were dealt with:
// what it stood for is not known. DeadlineExceeded, naming it, for one that does not go.
absl::StatusOr<std::vector<Leftover>> KillLeftovers(const std::string& directory,
                                                    std::chrono::milliseconds patience);

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_PROCESS_RECORD_H_

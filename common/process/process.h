// Other processes: records of them on disk, and the arguments that they are started with.
//
// A daemon that restarts finds by the records what its earlier life left running. A pid alone may
// have been reused by then; a pid with its start time and the boot id has not.
//
// Ownership: values; PointersTo points into its argument. Thread-safety: all functions from any
// thread; nobody may change this process's environment during EnvironmentWith.
#ifndef NIBBLE_COMMON_PROCESS_PROCESS_H_
#define NIBBLE_COMMON_PROCESS_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
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

// NotFound if there is no such process.
absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);

// Writes `name`.process in the directory, durably. Names contain no slash.
absl::Status WriteProcessRecord(const std::string& directory, const std::string& name,
                                const ProcessIdentity& identity);
void RemoveProcessRecord(const std::string& directory, const std::string& name);

struct Leftover {
  std::string name;
  ProcessIdentity identity;
  bool killed = false;  // false: it had ended already
};
// Kills the process groups of all records whose processes still run, waits for their end, and
// removes the records. An unreadable record is an error, returned after the others were handled.
// DeadlineExceeded, naming the process, if one does not end.
absl::StatusOr<std::vector<Leftover>> KillLeftovers(const std::string& directory,
                                                    std::chrono::milliseconds patience);

// This process's environment as NAME=VALUE, with the variables of `over` replaced or added.
std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& over);

// Pointers into `texts`, with a null pointer at the end, as exec and posix_spawn take them.
std::vector<char*> PointersTo(std::vector<std::string>& texts);

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_PROCESS_H_

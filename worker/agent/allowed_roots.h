// The directories that jobs may name: paths of data, tokenizers, initial weights and TensorBoard's
// files in specs, and destinations of exports. A job runs with the daemon's rights, so without
// roots it reads and writes whatever the daemon may.
//
// With roots no environment variable of a spec may have a path: libraries read variables with names
// of files to write and of code to load.
//
// Paths are resolved first, with symbolic links and "..". A path is checked when a job or task
// starts; what a directory under a root links to is the matter of those who may write there.
//
// Ownership: values. Thread-safety: const methods read the disk.
#ifndef NIBBLE_WORKER_AGENT_ALLOWED_ROOTS_H_
#define NIBBLE_WORKER_AGENT_ALLOWED_ROOTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

struct JobSpec;

class AllowedRoots {
 public:
  // Everything is allowed.
  AllowedRoots() = default;
  // InvalidArgument, naming the directory: it does not exist, or is no directory.
  static absl::StatusOr<AllowedRoots> Make(const std::vector<std::string>& directories);

  bool any() const { return !roots_.empty(); }

  // InvalidArgument, naming field, path, what it resolves to and the roots, unless the path is
  // under a root. It need not exist.
  absl::Status Check(absl::string_view field, const std::string& path) const;
  // Check of each path in the spec that ranks read or write, except output.directory, which the
  // daemon chooses.
  absl::Status CheckSpec(const JobSpec& spec) const;

 private:
  absl::Status CheckTensorboard(const std::string& path) const;

  std::vector<std::string> roots_;  // resolved; empty: everything is allowed
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_ALLOWED_ROOTS_H_

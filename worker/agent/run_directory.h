// The directory of a daemon's sockets: short, because a socket's path has 107 bytes at most, and
// this user's alone. A life that was killed leaves its own behind; the next one removes it.
//
// Ownership: owns the directory and what is in it, and the note of it in the data directory, which
// nobody else uses meanwhile. Thread-safety: none.
#ifndef NIBBLE_WORKER_AGENT_RUN_DIRECTORY_H_
#define NIBBLE_WORKER_AGENT_RUN_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble {

class RunDirectory {
 public:
  // Unavailable naming what cannot be made.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Claim(const std::string& data_directory);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  RunDirectory(std::string path, std::string note);

  const std::string path_;
  const std::string note_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_RUN_DIRECTORY_H_

// A directory that appears under its name complete or not at all: files go to a temporary directory
// beside it, which Commit() makes durable and puts in its place.
//
// Ownership: the object owns the temporary directory until Commit() succeeds, and its destructor
// removes it. A process killed in between leaves "<path>.tmp-<pid>-<n>" behind and the target as it
// was.
// Thread-safety: one thread at a time per object; different objects are independent.
#ifndef NIBBLE_WORKER_INTEROP_STAGED_DIRECTORY_H_
#define NIBBLE_WORKER_INTEROP_STAGED_DIRECTORY_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

class StagedDirectory {
 public:
  // With `overwrite`, a directory of that name is replaced where it is empty or a model's, which
  // has a config.json: a slip of the pen does not cost more than that.
  //
  //   AlreadyExists       the path exists, and `overwrite` is off
  //   FailedPrecondition  it exists and is not what may be replaced
  //   NotFound, ...       what the system said, e.g. of a parent that does not exist
  static absl::StatusOr<std::unique_ptr<StagedDirectory>> Create(const std::string& path,
                                                                 bool overwrite);

  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  // Where a file of that name is to be written until Commit(); whoever writes it syncs it.
  std::string PathOf(std::string_view name) const;
  // A small file, synced.
  absl::Status Write(std::string_view name, std::string_view content);

  // Syncs the directory, puts it in place, syncs its parent. A directory that is replaced changes
  // places with the new one in one step, and is then removed; FailedPrecondition where the file
  // system has no such step. AlreadyExists where something took the name meanwhile. An error of the
  // removal or of the last sync leaves the new directory in place. Call once, nothing after it.
  absl::Status Commit();

 private:
  StagedDirectory(std::string path, std::string temporary, bool replaces);

  const std::string path_;
  std::string temporary_;  // empty once it is gone
  const bool replaces_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_STAGED_DIRECTORY_H_

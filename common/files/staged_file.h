// Files and directories that appear under their name complete or not at all: they are written under
// a temporary name beside it, "<path>.tmp-<pid>-<n>", made durable, and renamed.
//
// StagedFile can be patched before it appears, so that a header may contain what is known only at
// the end. ReplaceFile writes a small file in one call.
//
// Ownership: an object owns what it wrote under the temporary name until it is published; its
// destructor removes it. A process killed in between leaves that behind (RemoveStagedLeftovers),
// and `path` unchanged.
// Thread-safety: one thread at a time per object; objects are independent, even for one path (the
// last one published wins).
#ifndef NIBBLE_COMMON_FILES_STAGED_FILE_H_
#define NIBBLE_COMMON_FILES_STAGED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files.h"

namespace nibble {

class StagedFile {
 public:
  // FailedPrecondition when `path` exists and is not a regular file: a rename would replace a
  // device, or a link instead of its target.
  static absl::StatusOr<std::unique_ptr<StagedFile>> Create(const std::string& path,
                                                            DiskFaults* faults = nullptr);

  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  ~StagedFile();

  const std::string& path() const { return path_; }

  // Appends through a buffer. After an error of any method the object can only be destroyed;
  // ResourceExhausted is a full disk.
  absl::Status Append(absl::Span<const std::byte> bytes);

  // Overwrites bytes that were appended; the range lies within them.
  absl::Status Overwrite(int64_t offset, absl::Span<const std::byte> bytes);

  // Makes the content durable under the temporary name, so that Publish() only renames.
  absl::Status Sync();

  // Sync(), rename over `path`, sync of the directory. On an error before the rename `path` is
  // unchanged; after an error of the last sync the new file is in place, but a crash of the machine
  // may still undo that. The last call.
  absl::Status Publish();

 private:
  StagedFile(std::string path, std::string temporary, int fd, DiskFaults* faults);

  absl::Status Flush();

  const std::string path_;
  DiskFaults* const faults_;
  std::string temporary_;  // empty once renamed
  int fd_;                 // -1 once closed
  std::vector<std::byte> buffer_;
};

// Replaces the content of the file at `path`, or creates the file, atomically. Durable on return.
absl::Status ReplaceFile(const std::string& path, std::string_view content,
                         DiskFaults* faults = nullptr);

class StagedDirectory {
 public:
  enum class Existing {
    kRefuse,
    kReplace,  // if it is empty or has a regular file `marker`: a mistyped path destroys nothing
  };
  //   AlreadyExists       the path exists, and `existing` is kRefuse
  //   FailedPrecondition  it exists and may not be replaced
  //   NotFound, ...       the system's error, e.g. for a parent that does not exist
  static absl::StatusOr<std::unique_ptr<StagedDirectory>> Create(const std::string& path,
                                                                 Existing existing,
                                                                 const std::string& marker,
                                                                 DiskFaults* faults = nullptr);

  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  // The path at which to write a file of that name before Commit(); the writer syncs it.
  std::string PathOf(std::string_view name) const;
  // Writes and syncs a small file.
  absl::Status Write(std::string_view name, std::string_view content);

  // Syncs the directory, moves it into place, syncs its parent. A replaced directory is atomically
  // exchanged with the new one and then removed; FailedPrecondition if the file system cannot
  // exchange. AlreadyExists if something took the name meanwhile. An error of the last sync or of
  // the removal leaves the new directory in place. The last call.
  absl::Status Commit();

 private:
  StagedDirectory(std::string path, std::string temporary, bool replaces, DiskFaults* faults);

  const std::string path_;
  std::string temporary_;  // empty once it is removed
  const bool replaces_;
  DiskFaults* const faults_;
};

// Removes the temporary files that killed processes left in `directory`. Call it only while no
// process stages files there. No error if there is no such directory.
absl::Status RemoveStagedLeftovers(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_COMMON_FILES_STAGED_FILE_H_

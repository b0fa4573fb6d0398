// Files and directories of the local disk: read whole, made durable, renamed, removed.
//
// Every error is that of the system call, as ErrnoError (common/errno_error.h) states it, and names
// the operation and the path.
//
// Ownership: faults are borrowed. Thread-safety: free functions, independent for different paths.
#ifndef NIBBLE_COMMON_FILES_FILES_H_
#define NIBBLE_COMMON_FILES_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

// Lets tests observe and fail writes, and observe what makes them durable: a file's content, by its
// own sync; a name, by the sync of its directory. Called from several threads at once. Functions and
// classes of this room take a pointer to it that may be null.
class DiskFaults {
 public:
  virtual ~DiskFaults() = default;
  // Called before `bytes` are written to the file at `path`, or, with 0 bytes, before something is
  // moved there: 0 lets it proceed, an errno (ENOSPC, EIO) makes it fail with that error.
  virtual int BeforeWrite(const std::string& path, int64_t bytes) = 0;
  // Called after the content of the file at `path` was made durable.
  virtual void AfterSync(const std::string& path) = 0;
  // Called after a file or directory was renamed; only the sync of its directory makes that durable.
  virtual void AfterRename(const std::string& /*from*/, const std::string& /*to*/) {}
  // Called after the names in the directory at `path` were made durable.
  virtual void AfterSyncDirectory(const std::string& /*path*/) {}
};

// The content of a regular file. FailedPrecondition if it is not a regular file or has more than
// `max_bytes`; NotFound if there is none.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes);

// write(2), or pwrite(2) from `offset` on, repeated until all bytes are written.
absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes, const std::string& path,
                      DiskFaults* faults = nullptr);
absl::Status WriteAllAt(int fd, int64_t offset, absl::Span<const std::byte> bytes,
                        const std::string& path);

// Makes the content of a file durable.
absl::Status SyncFile(const std::string& path, DiskFaults* faults = nullptr);

// Makes the names in a directory durable. "" is the working directory.
absl::Status SyncDirectory(const std::string& path, DiskFaults* faults = nullptr);
// As above, for the directory that has the name of `path`.
absl::Status SyncParentDirectory(const std::string& path, DiskFaults* faults = nullptr);

// Makes a directory and its missing parents, durably; no error if it exists.
absl::Status MakeDirectories(const std::string& path, DiskFaults* faults = nullptr);

// A rename that is durable on return. Both names are in `directory`.
absl::Status RenameInside(const std::string& directory, const std::string& from,
                          const std::string& to, DiskFaults* faults = nullptr);

// The names in a directory, in no particular order, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

// Removes a file or a directory tree; no error if there is none.
absl::Status RemoveTree(const std::string& path);

// From now on files and directories that this process and its children make are closed to everybody
// but their owner and group. For the start of a program, before it has threads.
void CloseNewFilesToOthers();

// Disk usage of a tree; unreadable parts count as 0.
int64_t TreeBytes(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_COMMON_FILES_FILES_H_

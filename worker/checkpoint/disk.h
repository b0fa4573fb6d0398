// The few things a checkpoint store asks of the disk by itself: small files that are replaced
// whole, directories, and errors that name what was being done.
//
// Ownership: borrows DiskFaults. Thread-safety: free functions, independent for different paths.
#ifndef NIBBLE_WORKER_CHECKPOINT_DISK_H_
#define NIBBLE_WORKER_CHECKPOINT_DISK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

// What a test does to a store's disk, and sees of it: every write of the store and of the RocksDB
// below it passes here. Called from several threads at once.
class DiskFaults {
 public:
  virtual ~DiskFaults() = default;
  // Before `bytes` are written to the file at `path`: 0 lets it happen, an errno (ENOSPC, EIO) is
  // what the writer gets instead.
  virtual int BeforeWrite(const std::string& path, int64_t bytes) = 0;
  // After the content of the file at `path` was made durable.
  virtual void AfterSync(const std::string& path) = 0;
};

// "<doing>: No space left on device"; a full disk, quota or file size limit is ResourceExhausted.
absl::Status ErrnoStatus(int error, absl::string_view doing);

// Replaces the file at `path`, durably and as one: it holds the old content or the new, whatever
// happens in between. The new content is first at `path`.tmp.
absl::Status ReplaceFile(const std::string& path, absl::string_view content, DiskFaults* faults);

// NotFound where there is no such file; DataLoss above kMaxWholeFileBytes, more than any file that
// is written whole has.
inline constexpr int64_t kMaxWholeFileBytes = int64_t{1} << 30;
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// Whether the file system lets this file be read past the page cache.
bool TakesDirectReads(const std::string& path);

// Makes a file's content durable.
absl::Status SyncFile(const std::string& path, DiskFaults* faults);

// Makes the names in a directory durable.
absl::Status SyncDirectory(const std::string& path);

// A rename that is durable on return. Both names are in `directory`.
absl::Status RenameInside(const std::string& directory, const std::string& from,
                          const std::string& to);

// Removes a file or a directory with all that is in it; no error where there is none.
absl::Status RemoveTree(const std::string& path);

// What a tree takes on the disk; what cannot be read counts as nothing.
int64_t TreeBytes(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_DISK_H_

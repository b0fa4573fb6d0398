// Advisory locks on files (flock): at most one holder among all processes, and among the FileLocks
// of one process. A lock ends when it is destroyed or its process ends, however it ends.
//
// The locked file contains the holder's process id, for error messages only. It is never removed:
// removing it would let two processes lock two files of the same name.
//
// Ownership: a FileLock owns the file's descriptor. Thread-safety: all functions; a FileLock is
// immutable.
#ifndef NIBBLE_COMMON_FILES_FILE_LOCK_H_
#define NIBBLE_COMMON_FILES_FILE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace nibble {

class FileLock {
 public:
  // Both create the file at `path` if it is missing, but not its directory. Errors are those of
  // ErrnoError, and:
  //
  //   Unavailable  (TryAcquire) the lock is taken; names the file and the process that has it
  static absl::StatusOr<FileLock> TryAcquire(const std::string& path);
  // Waits until the lock is free.
  static absl::StatusOr<FileLock> Acquire(const std::string& path);
  // Whether a lock on the file at `path` is taken now; false if there is no file. Makes none.
  static absl::StatusOr<bool> IsTaken(const std::string& path);

  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

  // Whether the locked file is still the one at its path. If not, the file was removed or replaced,
  // and the lock has no effect. True if the file cannot be examined because of a disk error.
  bool IsInPlace() const;

 private:
  FileLock(std::string path, int fd);

  std::string path_;
  int fd_;  // -1 after a move
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_FILES_FILE_LOCK_H_

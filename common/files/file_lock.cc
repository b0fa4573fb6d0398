#include "common/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

absl::Status LockedByAnother(int fd, const std::string& path) {
  char text[32] = {};
  const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
  const absl::string_view holder = absl::StripAsciiWhitespace(got > 0 ? text : "");
  return absl::UnavailableError(
      absl::StrCat(path, " is locked by process ", holder.empty() ? "(not known)" : holder));
}

// As flock, which a signal may interrupt.
int Lock(int fd, int operation) {
  int locked;
  do {
    locked = flock(fd, operation);
  } while (locked != 0 && errno == EINTR);
  return locked;
}

// Returns the descriptor. `operation`: of flock.
absl::StatusOr<int> OpenAndLock(const std::string& path, int operation) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoError(errno, "opening", path);
  if (Lock(fd, operation) != 0) {
    absl::Status status =
        errno == EWOULDBLOCK ? LockedByAnother(fd, path) : ErrnoError(errno, "locking", path);
    (void)close(fd);
    return status;
  }
  // For LockedByAnother only: a full disk must not prevent locking.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(fd, pid.data(), pid.size(), 0);
  }
  return fd;
}

}  // namespace

absl::StatusOr<FileLock> FileLock::TryAcquire(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const int fd, OpenAndLock(path, LOCK_EX | LOCK_NB));
  return FileLock(path, fd);
}

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const int fd, OpenAndLock(path, LOCK_EX));
  return FileLock(path, fd);
}

absl::StatusOr<bool> FileLock::IsTaken(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return false;
    return ErrnoError(errno, "opening", path);
  }
  const int error = Lock(fd, LOCK_SH | LOCK_NB) == 0 ? 0 : errno;
  (void)close(fd);
  if (error == 0 || error == EWOULDBLOCK) return error == EWOULDBLOCK;
  return ErrnoError(error, "locking", path);
}

FileLock::FileLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  // A forked child shares the descriptor and must not keep the lock.
  (void)flock(fd_, LOCK_UN);
  (void)close(fd_);
}

bool FileLock::IsInPlace() const {
  struct stat locked = {};
  struct stat named = {};
  if (fstat(fd_, &locked) != 0) return true;
  if (stat(path_.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return named.st_ino == locked.st_ino && named.st_dev == locked.st_dev;
}

}  // namespace nibble

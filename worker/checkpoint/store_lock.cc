#include "worker/checkpoint/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

absl::StatusOr<std::shared_ptr<StoreLock>> StoreLock::Take(const std::string& store) {
  const std::string path = absl::StrCat(store, "/", kLockFileName);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  int taken;
  do {
    taken = flock(fd, LOCK_EX | LOCK_NB);
  } while (taken != 0 && errno == EINTR);
  if (taken != 0) {
    const absl::Cleanup close_fd = [fd] { (void)close(fd); };
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("locking ", path));
    char holder[32] = {};
    const ssize_t got = pread(fd, holder, sizeof(holder) - 1, 0);
    return absl::UnavailableError(absl::StrCat(
        "store ", store, " is open for writing in process ",
        got > 0 ? absl::StripAsciiWhitespace(holder) : absl::string_view("(not known)")));
  }
  // For the message above only: a full disk must not keep a store from being read.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(fd, pid.data(), pid.size(), 0);
  }
  return std::shared_ptr<StoreLock>(new StoreLock(fd));
}

bool StoreLock::IsOf(const std::string& store) const {
  struct stat locked = {};
  struct stat named = {};
  const std::string path = absl::StrCat(store, "/", kLockFileName);
  if (fstat(fd_, &locked) != 0) return true;
  if (stat(path.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return named.st_ino == locked.st_ino && named.st_dev == locked.st_dev;
}

StoreLock::~StoreLock() {
  // A process forked from this one has the descriptor too; it does not hold the store.
  (void)flock(fd_, LOCK_UN);
  (void)close(fd_);
}

}  // namespace nibble

#include "server/store/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble {
namespace {

absl::Status NotLocked(int fd, int error, const std::string& directory) {
  if (error != EWOULDBLOCK) {
    return absl::UnavailableError(
        absl::ErrnoToStatus(error, absl::StrCat("locking ", directory, "/", kStoreLockName))
            .message());
  }
  char text[32] = {};
  const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
  const absl::string_view holder = absl::StripAsciiWhitespace(got > 0 ? text : "");
  return absl::UnavailableError(absl::StrCat("the store ", directory, " is open in process ",
                                             holder.empty() ? "(not known)" : holder));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreLock>> StoreLock::Take(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kStoreLockName);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::ErrnoToStatus(errno, absl::StrCat("opening ", path)).message());
  }
  int taken;
  do {
    taken = flock(fd, LOCK_EX | LOCK_NB);
  } while (taken != 0 && errno == EINTR);
  if (taken != 0) {
    absl::Status status = NotLocked(fd, errno, directory);
    (void)close(fd);
    return status;
  }
  // For the message above only: a full disk must not keep a store from being read.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(fd, pid.data(), pid.size(), 0);
  }
  return std::unique_ptr<StoreLock>(new StoreLock(fd));
}

StoreLock::~StoreLock() {
  // A process forked from this one has the descriptor too; it does not hold the store.
  (void)flock(fd_, LOCK_UN);
  (void)close(fd_);
}

}  // namespace nibble

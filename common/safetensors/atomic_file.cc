#include "common/safetensors/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace nibble::safetensors_internal {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening directory ", directory));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("syncing directory ", directory));
  }
  return absl::OkStatus();
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {
  buffer_.reserve(kBufferBytes);
}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a regular file, so it is not replaced"));
  }
  // The counter keeps this process's files apart, O_EXCL those of a dead process with our pid.
  static std::atomic<uint64_t> counter{0};
  while (true) {
    std::string temporary = absl::StrCat(path, ".tmp-", getpid(), "-", counter.fetch_add(1));
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(temporary), fd));
    }
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", temporary));
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) (void)close(fd_);
  if (!temporary_.empty()) (void)unlink(temporary_.c_str());
}

absl::Status AtomicFile::Append(absl::Span<const std::byte> bytes) {
  if (bytes.size() > kBufferBytes - buffer_.size()) {
    if (absl::Status status = WriteOut(buffer_); !status.ok()) return status;
    buffer_.clear();
    if (bytes.size() >= kBufferBytes) return WriteOut(bytes);
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return absl::OkStatus();
}

absl::Status AtomicFile::WriteOut(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("writing ", temporary_));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (absl::Status status = WriteOut(buffer_); !status.ok()) return status;
  buffer_.clear();
  // Before the rename: otherwise a crash could keep the new name and lose the content.
  if (fsync(fd_) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("syncing ", temporary_));
  // Some network file systems report a failed write only here.
  if (close(std::exchange(fd_, -1)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("closing ", temporary_));
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", temporary_, " to ", path_));
  }
  temporary_.clear();
  return SyncDirectory(DirectoryOf(path_));
}

}  // namespace nibble::safetensors_internal

#include "common/staged_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

// Hands `bytes` to `write_some(bytes)`, which says as write(2) does how many it took.
template <class WriteSome>
absl::Status WriteAll(absl::Span<const std::byte> bytes, const std::string& name,
                      WriteSome write_some) {
  while (!bytes.empty()) {
    const ssize_t written = write_some(bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, absl::StrCat("writing ", name));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

StagedFile::StagedFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {
  buffer_.reserve(kBufferBytes);
}

StagedFile::~StagedFile() {
  if (fd_ >= 0) (void)close(fd_);
  if (!temporary_.empty()) (void)unlink(temporary_.c_str());
}

absl::StatusOr<std::unique_ptr<StagedFile>> StagedFile::Create(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a regular file, so it is not replaced"));
  }
  // The number keeps this process's files apart, O_EXCL those of a dead one that had our pid.
  static std::atomic<uint64_t> next{0};
  for (;;) {
    std::string temporary = absl::StrCat(path, ".tmp-", getpid(), "-", next.fetch_add(1));
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      return std::unique_ptr<StagedFile>(new StagedFile(path, std::move(temporary), fd));
    }
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", temporary));
  }
}

absl::Status StagedFile::Append(absl::Span<const std::byte> bytes) {
  if (bytes.size() > kBufferBytes - buffer_.size()) {
    NIBBLE_RETURN_IF_ERROR(Flush());
  }
  if (bytes.size() <= kBufferBytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }
  return WriteAll(bytes, temporary_,
                  [&](auto rest) { return write(fd_, rest.data(), rest.size()); });
}

absl::Status StagedFile::Flush() {
  absl::Status status = WriteAll(buffer_, temporary_,
                                 [&](auto rest) { return write(fd_, rest.data(), rest.size()); });
  buffer_.clear();
  return status;
}

absl::Status StagedFile::Overwrite(int64_t offset, absl::Span<const std::byte> bytes) {
  NIBBLE_RETURN_IF_ERROR(Flush());
  return WriteAll(bytes, temporary_, [&](auto rest) {
    const ssize_t written = pwrite(fd_, rest.data(), rest.size(), offset);
    if (written > 0) offset += written;
    return written;
  });
}

absl::Status StagedFile::Sync() {
  NIBBLE_RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("syncing ", temporary_));
  return absl::OkStatus();
}

absl::Status StagedFile::Publish() {
  // Before the rename: otherwise a crash could keep the new name and lose the content.
  NIBBLE_RETURN_IF_ERROR(Sync());
  // Some network file systems report a failed write only here.
  if (close(std::exchange(fd_, -1)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("closing ", temporary_));
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", temporary_, " to ", path_));
  }
  temporary_.clear();

  const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
  const char* directory = parent.empty() ? "." : parent.c_str();
  const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening directory ", directory));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("syncing directory ", directory));
  }
  return absl::OkStatus();
}

absl::Status WriteStaged(const std::string& path, absl::string_view bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFile> file, StagedFile::Create(path));
  absl::Status status = file->Append(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return status.ok() ? file->Publish() : status;
}

}  // namespace nibble

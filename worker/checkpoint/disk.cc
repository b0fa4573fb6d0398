#include "worker/checkpoint/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble {

absl::Status ErrnoStatus(int error, absl::string_view doing) {
  const absl::Status status = absl::ErrnoToStatus(error, doing);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(status.message());
  }
  return status;
}

absl::Status ReplaceFile(const std::string& path, absl::string_view content, DiskFaults* faults) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("creating ", temporary));
  absl::Cleanup undo = [&] {
    if (fd >= 0) (void)close(fd);
    (void)unlink(temporary.c_str());
  };
  if (faults != nullptr) {
    const int error = faults->BeforeWrite(temporary, static_cast<int64_t>(content.size()));
    if (error != 0) return ErrnoStatus(error, absl::StrCat("writing ", temporary));
  }
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("writing ", temporary));
    }
    content.remove_prefix(static_cast<size_t>(written));
  }
  if (fsync(fd) != 0) return ErrnoStatus(errno, absl::StrCat("syncing ", temporary));
  if (faults != nullptr) faults->AfterSync(temporary);
  if (close(std::exchange(fd, -1)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("closing ", temporary));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("renaming ", temporary, " to ", path));
  }
  std::move(undo).Cancel();
  return SyncDirectory(std::filesystem::path(path).parent_path().string());
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  std::string content;
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("reading ", path));
    }
    if (got == 0) return content;
    content.append(buffer.data(), static_cast<size_t>(got));
    if (static_cast<int64_t>(content.size()) > kMaxWholeFileBytes) {
      return absl::DataLossError(absl::StrCat(path, " has more than ", kMaxWholeFileBytes,
                                              " bytes, which no record has"));
    }
  }
}

bool TakesDirectReads(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) return false;
  // Some open it and then refuse to read.
  alignas(4096) std::byte block[4096];
  const bool taken = pread(fd, block, sizeof(block), 0) >= 0;
  (void)close(fd);
  return taken;
}

absl::Status SyncFile(const std::string& path, DiskFaults* faults) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) return ErrnoStatus(errno, absl::StrCat("syncing ", path));
  if (faults != nullptr) faults->AfterSync(path);
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening directory ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) return ErrnoStatus(errno, absl::StrCat("syncing directory ", path));
  return absl::OkStatus();
}

absl::Status RenameInside(const std::string& directory, const std::string& from,
                          const std::string& to) {
  const std::string old_path = absl::StrCat(directory, "/", from);
  const std::string new_path = absl::StrCat(directory, "/", to);
  if (rename(old_path.c_str(), new_path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("renaming ", old_path, " to ", new_path));
  }
  return SyncDirectory(directory);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("removing ", path));
  return absl::OkStatus();
}

int64_t TreeBytes(const std::string& path) {
  int64_t bytes = 0;
  const auto add = [&bytes](const std::filesystem::path& file) {
    struct stat info = {};
    if (lstat(file.c_str(), &info) == 0) bytes += int64_t{info.st_blocks} * 512;
  };
  add(path);
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(path, error), end;
       !error && entry != end; entry.increment(error)) {
    add(entry->path());
  }
  return bytes;
}

}  // namespace nibble

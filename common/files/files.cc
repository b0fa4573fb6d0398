#include "common/files/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// `write_some(bytes)` returns the number of bytes that it wrote, as write(2) does.
template <class WriteSome>
absl::Status Repeat(absl::Span<const std::byte> bytes, const std::string& path,
                    WriteSome write_some) {
  while (!bytes.empty()) {
    const ssize_t written = write_some(bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError(errno, "writing", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// `what`: "" or "directory ", before the path in an error.
absl::Status Sync(const std::string& path, int flags, const char* what) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) return ErrnoError(errno, "opening", absl::StrCat(what, path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) return ErrnoError(errno, "syncing", absl::StrCat(what, path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoError(errno, "opening", path);
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoError(errno, "examining", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  const auto too_long = [&](auto bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", bytes, " bytes are more than ", max_bytes));
  };
  if (static_cast<uint64_t>(info.st_size) > max_bytes) return too_long(info.st_size);
  // Files of /proc have no size, and others may grow: read until the end.
  std::string content;
  constexpr size_t kStep = size_t{1} << 16;
  size_t room = static_cast<size_t>(info.st_size) + 1;
  while (true) {
    const size_t begin = content.size();
    content.resize(begin + room);
    const ssize_t got = read(fd, content.data() + begin, room);
    const int error = errno;
    content.resize(begin + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got < 0 && error == EINTR) continue;
    if (got < 0) return ErrnoError(error, "reading", path);
    if (got == 0) return content;
    if (content.size() > max_bytes) return too_long(content.size());
    room = kStep;
  }
}

absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes, const std::string& path,
                      DiskFaults* faults) {
  if (faults != nullptr && !bytes.empty()) {
    const int error = faults->BeforeWrite(path, static_cast<int64_t>(bytes.size()));
    if (error != 0) return ErrnoError(error, "writing", path);
  }
  return Repeat(bytes, path, [fd](auto rest) { return write(fd, rest.data(), rest.size()); });
}

absl::Status WriteAllAt(int fd, int64_t offset, absl::Span<const std::byte> bytes,
                        const std::string& path) {
  return Repeat(bytes, path, [fd, &offset](auto rest) {
    const ssize_t written = pwrite(fd, rest.data(), rest.size(), offset);
    if (written > 0) offset += written;
    return written;
  });
}

absl::Status SyncFile(const std::string& path, DiskFaults* faults) {
  NIBBLE_RETURN_IF_ERROR(Sync(path, 0, ""));
  if (faults != nullptr) faults->AfterSync(path);
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path, DiskFaults* faults) {
  NIBBLE_RETURN_IF_ERROR(Sync(path.empty() ? "." : path, O_DIRECTORY, "directory "));
  if (faults != nullptr) faults->AfterSyncDirectory(path);
  return absl::OkStatus();
}

absl::Status SyncParentDirectory(const std::string& path, DiskFaults* faults) {
  return SyncDirectory(fs::path(path).parent_path().string(), faults);
}

absl::Status MakeDirectories(const std::string& path, DiskFaults* faults) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(fs::path(path).parent_path().string(), faults));
  fs::create_directory(path, error);
  if (error) return ErrnoError(error.value(), "making directory", path);
  return SyncParentDirectory(path, faults);
}

absl::Status RenameInside(const std::string& directory, const std::string& from,
                          const std::string& to, DiskFaults* faults) {
  const std::string old_path = absl::StrCat(directory, "/", from);
  const std::string new_path = absl::StrCat(directory, "/", to);
  if (rename(old_path.c_str(), new_path.c_str()) != 0) {
    return ErrnoError(errno, "renaming", absl::StrCat(old_path, " to ", new_path));
  }
  if (faults != nullptr) faults->AfterRename(old_path, new_path);
  return SyncDirectory(directory, faults);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return ErrnoError(error.value(), "listing", path);
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? ErrnoError(error.value(), "removing", path) : absl::OkStatus();
}

void CloseNewFilesToOthers() { (void)umask(umask(S_IRWXO) | S_IWGRP | S_IRWXO); }

int64_t TreeBytes(const std::string& path) {
  int64_t bytes = 0;
  const auto add = [&bytes](const fs::path& file) {
    struct stat info = {};
    if (lstat(file.c_str(), &info) == 0) bytes += int64_t{info.st_blocks} * 512;
  };
  add(path);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    add(entry->path());
  }
  return bytes;
}

}  // namespace nibble

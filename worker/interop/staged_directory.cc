#include "worker/interop/staged_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening directory ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("syncing directory ", path));
  return absl::OkStatus();
}

absl::Status Replaceable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error)) &&
      (fs::is_empty(path, error) || fs::is_regular_file(fs::path(path) / "config.json", error))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is neither an empty directory nor one with a config.json, so it is not replaced"));
}

}  // namespace

StagedDirectory::StagedDirectory(std::string path, std::string temporary, bool replaces)
    : path_(std::move(path)), temporary_(std::move(temporary)), replaces_(replaces) {}

absl::StatusOr<std::unique_ptr<StagedDirectory>> StagedDirectory::Create(const std::string& path,
                                                                         bool overwrite) {
  std::string target = path;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  struct stat info = {};
  const bool exists = lstat(target.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("looking at ", target));
  }
  if (exists && !overwrite) {
    return absl::AlreadyExistsError(absl::StrCat(target, " exists"));
  }
  if (exists) {
    if (absl::Status status = Replaceable(target); !status.ok()) return status;
  }
  // The counter keeps this process's directories apart, mkdir those of a dead one with our pid.
  static std::atomic<uint64_t> counter{0};
  while (true) {
    std::string temporary = absl::StrCat(target, ".tmp-", getpid(), "-", counter.fetch_add(1));
    if (mkdir(temporary.c_str(), 0777) == 0) {
      return std::unique_ptr<StagedDirectory>(
          new StagedDirectory(std::move(target), std::move(temporary), exists));
    }
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("making ", temporary));
  }
}

StagedDirectory::~StagedDirectory() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
}

std::string StagedDirectory::PathOf(std::string_view name) const {
  return (fs::path(temporary_) / name).string();
}

absl::Status StagedDirectory::Write(std::string_view name, std::string_view content) {
  const std::string path = PathOf(name);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", path));
  absl::Status status;
  while (status.ok() && !content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
    } else {
      content.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (status.ok() && fsync(fd) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("syncing ", path));
  }
  // Some network file systems report a failed write only here.
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("closing ", path));
  }
  return status;
}

absl::Status StagedDirectory::Commit() {
  if (absl::Status status = SyncDirectory(temporary_); !status.ok()) return status;
  const unsigned flags = replaces_ ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags) != 0) {
    const int error = errno;
    const std::string what = absl::StrCat("renaming ", temporary_, " to ", path_);
    if (error == EINVAL || error == ENOSYS) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": the file system cannot do it in one step; write where nothing is and move it"));
    }
    return absl::ErrnoToStatus(error, what);
  }
  // What has the temporary name now is the replaced directory, or nothing.
  std::error_code error;
  if (replaces_) fs::remove_all(temporary_, error);
  const std::string left = std::exchange(temporary_, "");
  const fs::path parent = fs::path(path_).parent_path();
  absl::Status status = SyncDirectory(parent.empty() ? "." : parent.string());
  if (status.ok() && error) {
    status = absl::ErrnoToStatus(error.value(),
                                 absl::StrCat("removing the replaced directory, now ", left));
  }
  return status;
}

}  // namespace nibble

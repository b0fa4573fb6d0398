#include "common/files/staged_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr std::string_view kTemporary = ".tmp-";

// Calls make(temporary name) with new names until it does not fail with EEXIST; returns the name.
// The counter keeps this process's names apart, EEXIST those of a dead process that had our pid.
template <class Make>
absl::StatusOr<std::string> MakeTemporary(const std::string& path, Make make) {
  static std::atomic<uint64_t> counter{0};
  while (true) {
    std::string name =
        absl::StrCat(path, std::string(kTemporary), getpid(), "-", counter.fetch_add(1));
    if (make(name.c_str()) >= 0) return name;
    if (errno != EEXIST) return ErrnoError(errno, "creating", name);
  }
}

// <any name>.tmp-<digits>-<digits>
bool IsTemporary(std::string_view name) {
  const size_t at = name.rfind(kTemporary);
  if (at == std::string_view::npos) return false;
  const std::string_view numbers = name.substr(at + kTemporary.size());
  const size_t dash = numbers.find('-');
  return dash != std::string_view::npos && dash != 0 && dash + 1 < numbers.size() &&
         numbers.find_first_not_of("0123456789") == dash &&
         numbers.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

}  // namespace

StagedFile::StagedFile(std::string path, std::string temporary, int fd, DiskFaults* faults)
    : path_(std::move(path)), faults_(faults), temporary_(std::move(temporary)), fd_(fd) {
  buffer_.reserve(kBufferBytes);
}

StagedFile::~StagedFile() {
  if (fd_ >= 0) (void)close(fd_);
  if (!temporary_.empty()) (void)unlink(temporary_.c_str());
}

absl::StatusOr<std::unique_ptr<StagedFile>> StagedFile::Create(const std::string& path,
                                                               DiskFaults* faults) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a regular file, so it is not replaced"));
  }
  int fd = -1;
  NIBBLE_ASSIGN_OR_RETURN(std::string temporary, MakeTemporary(path, [&fd](const char* name) {
                            return fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
                          }));
  return std::unique_ptr<StagedFile>(new StagedFile(path, std::move(temporary), fd, faults));
}

absl::Status StagedFile::Append(absl::Span<const std::byte> bytes) {
  if (bytes.size() > kBufferBytes - buffer_.size()) {
    NIBBLE_RETURN_IF_ERROR(Flush());
  }
  if (bytes.size() <= kBufferBytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }
  return WriteAll(fd_, bytes, temporary_, faults_);
}

absl::Status StagedFile::Flush() {
  absl::Status status = WriteAll(fd_, buffer_, temporary_, faults_);
  buffer_.clear();
  return status;
}

absl::Status StagedFile::Overwrite(int64_t offset, absl::Span<const std::byte> bytes) {
  NIBBLE_RETURN_IF_ERROR(Flush());
  return WriteAllAt(fd_, offset, bytes, temporary_);
}

absl::Status StagedFile::Sync() {
  NIBBLE_RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) return ErrnoError(errno, "syncing", temporary_);
  if (faults_ != nullptr) faults_->AfterSync(temporary_);
  return absl::OkStatus();
}

absl::Status StagedFile::Publish() {
  // Sync before the rename: otherwise a crash could keep the new name and lose the content.
  NIBBLE_RETURN_IF_ERROR(Sync());
  // Some network file systems report a failed write only here.
  if (close(std::exchange(fd_, -1)) != 0) return ErrnoError(errno, "closing", temporary_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoError(errno, "renaming", absl::StrCat(temporary_, " to ", path_));
  }
  if (faults_ != nullptr) faults_->AfterRename(temporary_, path_);
  temporary_.clear();
  return SyncParentDirectory(path_, faults_);
}

absl::Status ReplaceFile(const std::string& path, std::string_view content, DiskFaults* faults) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFile> file, StagedFile::Create(path, faults));
  NIBBLE_RETURN_IF_ERROR(file->Append(AsBytes(content)));
  return file->Publish();
}

namespace {

absl::Status CheckReplaceable(const std::string& path, const std::string& marker) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error)) &&
      (fs::is_empty(path, error) || fs::is_regular_file(fs::path(path) / marker, error))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is neither an empty directory nor one with a ", marker, ", so it is not replaced"));
}

}  // namespace

StagedDirectory::StagedDirectory(std::string path, std::string temporary, bool replaces,
                                 DiskFaults* faults)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      replaces_(replaces),
      faults_(faults) {}

absl::StatusOr<std::unique_ptr<StagedDirectory>> StagedDirectory::Create(
    const std::string& path, Existing existing, const std::string& marker, DiskFaults* faults) {
  std::string target = path;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  struct stat info = {};
  const bool exists = lstat(target.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return ErrnoError(errno, "examining", target);
  if (exists && existing == Existing::kRefuse) {
    return absl::AlreadyExistsError(absl::StrCat(target, " exists"));
  }
  if (exists) {
    NIBBLE_RETURN_IF_ERROR(CheckReplaceable(target, marker));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::string temporary, MakeTemporary(target, [](const char* name) {
                            return mkdir(name, 0777);
                          }));
  return std::unique_ptr<StagedDirectory>(
      new StagedDirectory(std::move(target), std::move(temporary), exists, faults));
}

StagedDirectory::~StagedDirectory() {
  if (!temporary_.empty()) (void)RemoveTree(temporary_);
}

std::string StagedDirectory::PathOf(std::string_view name) const {
  return (fs::path(temporary_) / name).string();
}

absl::Status StagedDirectory::Write(std::string_view name, std::string_view content) {
  return ReplaceFile(PathOf(name), content, faults_);
}

absl::Status StagedDirectory::Commit() {
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(temporary_, faults_));
  const unsigned flags = replaces_ ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags) != 0) {
    const int error = errno;
    const std::string names = absl::StrCat(temporary_, " to ", path_);
    if (error == EINVAL || error == ENOSYS) {
      return absl::FailedPreconditionError(
          absl::StrCat("renaming ", names,
                       ": the file system cannot do it in one step; choose a path that does not "
                       "exist and move the result"));
    }
    return ErrnoError(error, "renaming", names);
  }
  if (faults_ != nullptr) faults_->AfterRename(temporary_, path_);
  // The temporary name now belongs to the replaced directory, or to nothing.
  const std::string replaced = std::exchange(temporary_, "");
  // Sync before the removal: otherwise a crash could keep the old directory without its content.
  NIBBLE_RETURN_IF_ERROR(SyncParentDirectory(path_, faults_));
  const absl::Status removed = replaces_ ? RemoveTree(replaced) : absl::OkStatus();
  if (removed.ok()) return removed;
  return absl::Status(removed.code(), absl::StrCat("the replaced directory is now ", replaced, ": ",
                                                   removed.message()));
}

absl::Status RemoveStagedLeftovers(const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!IsTemporary(name)) continue;
    NIBBLE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace nibble

#include "worker/checkpoint/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

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
      return absl::DataLossError(
          absl::StrCat(path, " has more than ", kMaxWholeFileBytes, " bytes, which no record has"));
    }
  }
}

bool TakesDirectReads(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) return false;
  // Some file systems open it and then refuse to read.
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

absl::StatusOr<std::unique_ptr<DirectFile>> DirectFile::Create(const std::string& path,
                                                               DiskFaults* faults) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  bool direct = true;
  int fd = open(path.c_str(), kFlags | O_DIRECT, 0666);
  if (fd < 0 && errno == EINVAL) {
    direct = false;
    fd = open(path.c_str(), kFlags, 0666);
  }
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("creating ", path));
  return std::unique_ptr<DirectFile>(new DirectFile(path, fd, direct, faults));
}

DirectFile::DirectFile(const std::string& path, int fd, bool direct, DiskFaults* faults)
    : path_(path), fd_(fd), faults_(faults), direct_(direct) {
  for (auto& buffer : buffers_) {
    buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBufferBytes)));
  }
  thread_ = std::thread([this] { Run(); });
}

DirectFile::~DirectFile() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  (void)close(fd_);
}

absl::Status DirectFile::Append(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t taken = std::min(kBufferBytes - filled_, static_cast<int64_t>(bytes.size()));
    std::memcpy(filling_->get() + filled_, bytes.data(), taken);
    filled_ += taken;
    size_ += taken;
    bytes.remove_prefix(taken);
    if (filled_ == kBufferBytes) {
      NIBBLE_RETURN_IF_ERROR(Hand(kBufferBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status DirectFile::Finish() {
  if (filled_ > 0) {
    // Whole blocks only; the ftruncate below removes the padding.
    const int64_t whole = (filled_ + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(filling_->get() + filled_, 0, whole - filled_);
    NIBBLE_RETURN_IF_ERROR(Hand(whole));
  }
  NIBBLE_RETURN_IF_ERROR(WaitForThread(0));
  if (ftruncate(fd_, size_) != 0) return ErrnoStatus(errno, absl::StrCat("cutting ", path_));
  if (fsync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat("syncing ", path_));
  if (faults_ != nullptr) faults_->AfterSync(path_);
  return absl::OkStatus();
}

absl::Status DirectFile::Hand(int64_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_[handed_ % kBuffers] = bytes;
    ++handed_;
    filling_ = &buffers_[handed_ % kBuffers];
  }
  changed_.notify_all();
  filled_ = 0;
  return WaitForThread(kBuffers - 1);
}

absl::Status DirectFile::WaitForThread(int64_t pending) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return handed_ - written_ <= pending; });
  return status_;
}

void DirectFile::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return written_ < handed_ || stop_; });
    if (written_ == handed_) return;
    const int64_t n = written_, bytes = bytes_[n % kBuffers];
    const bool good = status_.ok();
    lock.unlock();
    absl::Status status;
    if (good) status = WriteOut(buffers_[n % kBuffers].get(), bytes, n * kBufferBytes);
    lock.lock();
    status_.Update(status);
    ++written_;
    changed_.notify_all();
  }
}

absl::Status DirectFile::WriteOut(const std::byte* bytes, int64_t count, int64_t offset) {
  if (faults_ != nullptr) {
    const int error = faults_->BeforeWrite(path_, count);
    if (error != 0) return ErrnoStatus(error, absl::StrCat("writing ", path_));
  }
  while (count > 0) {
    const ssize_t written = pwrite(fd_, bytes, count, offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL && direct_) {
        // A file system may accept O_DIRECT and then refuse its alignment, or the rest of a partial
        // write.
        if (fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT) == 0) {
          direct_ = false;
          continue;
        }
        errno = EINVAL;
      }
      return ErrnoStatus(errno, absl::StrCat("writing ", path_));
    }
    bytes += written;
    count -= written;
    offset += written;
  }
  return absl::OkStatus();
}

}  // namespace nibble

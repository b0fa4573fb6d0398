#include "worker/checkpoint/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/checkpoint/disk.h"

namespace nibble {

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
      if (absl::Status status = Hand(kBufferBytes); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status DirectFile::Finish() {
  if (filled_ > 0) {
    // Whole blocks only; what is too much is cut off again below.
    const int64_t whole = (filled_ + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(filling_->get() + filled_, 0, whole - filled_);
    if (absl::Status status = Hand(whole); !status.ok()) return status;
  }
  if (absl::Status status = WaitForThread(0); !status.ok()) return status;
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
        // A file system may take O_DIRECT and then refuse its alignment, or the rest of a write
        // that was cut short.
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

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
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {

bool TakesDirectReads(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) return false;
  // Some file systems open it and then refuse to read.
  alignas(4096) std::byte block[4096];
  const bool taken = pread(fd, block, sizeof(block), 0) >= 0;
  (void)close(fd);
  return taken;
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
  if (fd < 0) return ErrnoError(errno, "creating", path);
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
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
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
      NIBBLE_RETURN_IF_ERROR(PassBuffer(kBufferBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status DirectFile::Finish() {
  if (filled_ > 0) {
    // Whole blocks only; the ftruncate below removes the padding.
    const int64_t whole = (filled_ + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(filling_->get() + filled_, 0, whole - filled_);
    NIBBLE_RETURN_IF_ERROR(PassBuffer(whole));
  }
  NIBBLE_RETURN_IF_ERROR(WaitForThread(0));
  if (ftruncate(fd_, size_) != 0) return ErrnoError(errno, "truncating", path_);
  if (fsync(fd_) != 0) return ErrnoError(errno, "syncing", path_);
  if (faults_ != nullptr) faults_->AfterSync(path_);
  return absl::OkStatus();
}

absl::Status DirectFile::PassBuffer(int64_t bytes) {
  {
    MutexLock lock(&mutex_);
    bytes_[passed_ % kBuffers] = bytes;
    ++passed_;
    filling_ = &buffers_[passed_ % kBuffers];
    changed_.SignalAll();
  }
  filled_ = 0;
  return WaitForThread(kBuffers - 1);
}

absl::Status DirectFile::WaitForThread(int64_t pending) {
  MutexLock lock(&mutex_);
  while (passed_ - written_ > pending) changed_.Wait(&mutex_);
  return status_;
}

void DirectFile::Run() {
  while (true) {
    int64_t n, bytes;
    bool write;
    {
      MutexLock lock(&mutex_);
      while (written_ == passed_ && !stop_) changed_.Wait(&mutex_);
      if (written_ == passed_) return;
      n = written_;
      bytes = bytes_[n % kBuffers];
      write = status_.ok();
    }
    absl::Status status;
    if (write) status = WriteBuffer(buffers_[n % kBuffers].get(), bytes, n * kBufferBytes);
    MutexLock lock(&mutex_);
    status_.Update(status);
    ++written_;
    changed_.SignalAll();
  }
}

absl::Status DirectFile::WriteBuffer(const std::byte* bytes, int64_t count, int64_t offset) {
  if (faults_ != nullptr) {
    const int error = faults_->BeforeWrite(path_, count);
    if (error != 0) return ErrnoError(error, "writing", path_);
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
      return ErrnoError(errno, "writing", path_);
    }
    bytes += written;
    count -= written;
    offset += written;
  }
  return absl::OkStatus();
}

}  // namespace nibble

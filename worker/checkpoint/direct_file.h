// A file written once, front to back, at the disk's speed.
//
// Appended bytes are copied into buffers that a thread writes past the page cache (O_DIRECT). Disk
// and processor work at the same time, and a checkpoint does not evict a job's data from the cache.
// On a file system without O_DIRECT (tmpfs, some network ones) it writes through the cache;
// direct() reports which.
//
// Ownership: a DirectFile owns its descriptor, buffers and thread; DiskFaults are borrowed.
// Thread-safety: one thread at a time per DirectFile; DirectFiles are independent.
#ifndef NIBBLE_WORKER_CHECKPOINT_DIRECT_FILE_H_
#define NIBBLE_WORKER_CHECKPOINT_DIRECT_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files.h"
#include "common/mutex.h"

namespace nibble {

// Whether the file system lets this file be read past the page cache.
bool TakesDirectReads(const std::string& path);

class DirectFile {
 public:
  static constexpr int64_t kBufferBytes = int64_t{4} << 20;
  // More than two, so that the disk stays busy when either thread is late.
  static constexpr int kBuffers = 4;
  static constexpr int64_t kAlignment = 4096;

  // `faults` may be null.
  static absl::StatusOr<std::unique_ptr<DirectFile>> Create(const std::string& path,
                                                            DiskFaults* faults);
  // Waits for the write in progress. A file that was not finished stays on disk, incomplete.
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // Copies the bytes. May return the error of an earlier write; after one, nothing is written.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // Writes the remaining bytes and makes the file durable with exactly size() bytes. The last call.
  absl::Status Finish();

  int64_t size() const { return size_; }
  bool direct() const { return direct_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  DirectFile(const std::string& path, int fd, bool direct, DiskFaults* faults);
  // Passes the first `bytes` of the current buffer to the thread; waits for a free one.
  absl::Status PassBuffer(int64_t bytes);
  // Waits until the thread has at most `pending` buffers.
  absl::Status WaitForThread(int64_t pending);
  void Run();
  absl::Status WriteBuffer(const std::byte* bytes, int64_t count, int64_t offset);

  const std::string path_;
  const int fd_;
  DiskFaults* const faults_;
  std::atomic<bool> direct_;
  std::unique_ptr<std::byte, Free> buffers_[kBuffers];  // [kBufferBytes] each, aligned
  // Used by the caller: buffer number passed_ % kBuffers, and the number of bytes in it.
  const std::unique_ptr<std::byte, Free>* filling_ = &buffers_[0];
  int64_t filled_ = 0;
  int64_t size_ = 0;

  Mutex mutex_;
  CondVar changed_;
  // The thread owns buffers n % kBuffers for n in [written_, passed_), the caller the others;
  // buffer n starts at file offset n · kBufferBytes.
  int64_t passed_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_[kBuffers] ABSL_GUARDED_BY(mutex_) = {};
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_DIRECT_FILE_H_

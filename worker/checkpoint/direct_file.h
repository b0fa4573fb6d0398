// A file that is written once, from front to back, as fast as the disk takes it: what is appended
// is copied into buffers that a thread writes past the page cache. So the disk and the processor
// work at the same time, and a checkpoint does not push a job's data out of the cache.
//
// A file system without O_DIRECT (tmpfs, some network ones) is written through the cache; direct()
// tells.
//
// Ownership: owns the descriptor, its buffers and its thread; borrows `faults`.
// Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_CHECKPOINT_DIRECT_FILE_H_
#define NIBBLE_WORKER_CHECKPOINT_DIRECT_FILE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/checkpoint/disk.h"

namespace nibble {

class DirectFile {
 public:
  static constexpr int64_t kBufferBytes = int64_t{4} << 20;
  // More than two, so that the disk does not wait when either thread is late.
  static constexpr int kBuffers = 4;
  static constexpr int64_t kAlignment = 4096;

  // `faults` may be null.
  static absl::StatusOr<std::unique_ptr<DirectFile>> Create(const std::string& path,
                                                            DiskFaults* faults);
  // Waits for the write that is under way. A file that was not finished stays, unfinished.
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // The bytes are copied. An error may be that of earlier bytes; after one, nothing is written.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // Writes what is left and makes the file durable with exactly size() bytes. Nothing after it.
  absl::Status Finish();

  int64_t size() const { return size_; }
  bool direct() const { return direct_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  DirectFile(const std::string& path, int fd, bool direct, DiskFaults* faults);
  // Hands the first `bytes` of the buffer that is being filled to the thread; waits for another.
  absl::Status Hand(int64_t bytes);
  // Until at most `pending` buffers are with the thread.
  absl::Status WaitForThread(int64_t pending);
  void Run();
  absl::Status WriteOut(const std::byte* bytes, int64_t count, int64_t offset);

  const std::string path_;
  const int fd_;
  DiskFaults* const faults_;
  std::atomic<bool> direct_;
  std::unique_ptr<std::byte, Free> buffers_[kBuffers];  // [kBufferBytes] each, aligned
  const std::unique_ptr<std::byte, Free>* filling_ = &buffers_[0];  // number handed_ % kBuffers
  int64_t filled_ = 0;                                              // bytes in it
  int64_t size_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Buffer n % kBuffers, n in [written_, handed_), is the thread's, the others
  // the caller's; buffer n holds the bytes from n · kBufferBytes on.
  int64_t handed_ = 0;
  int64_t written_ = 0;
  int64_t bytes_[kBuffers] = {};
  bool stop_ = false;
  absl::Status status_;

  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_DIRECT_FILE_H_

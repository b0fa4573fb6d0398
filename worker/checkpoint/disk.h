// Disk access of a checkpoint store: small files that are replaced atomically, directories, and
// errors that name the failed operation; and DirectFile, a file written once, front to back, at the
// disk's speed.
//
// DirectFile copies appended bytes into buffers that a thread writes past the page cache. Disk and
// processor work at the same time, and a checkpoint does not evict a job's data from the cache. On
// a file system without O_DIRECT (tmpfs, some network ones) it writes through the cache; direct()
// reports which.
//
// Ownership: a DirectFile owns its descriptor, buffers and thread; DiskFaults are borrowed.
// Thread-safety: free functions, independent for different paths; a DirectFile: one thread at a
// time.
#ifndef NIBBLE_WORKER_CHECKPOINT_DISK_H_
#define NIBBLE_WORKER_CHECKPOINT_DISK_H_

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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nibble {

// Lets tests observe and fail writes: every write of the store and of RocksDB below it is reported
// here. Called from several threads at once.
class DiskFaults {
 public:
  virtual ~DiskFaults() = default;
  // Called before `bytes` are written to the file at `path`: 0 lets the write proceed, an errno
  // (ENOSPC, EIO) makes it fail with that error.
  virtual int BeforeWrite(const std::string& path, int64_t bytes) = 0;
  // Called after the content of the file at `path` was made durable.
  virtual void AfterSync(const std::string& path) = 0;
};

// "<doing>: No space left on device"; a full disk, quota or file size limit is ResourceExhausted.
absl::Status ErrnoStatus(int error, absl::string_view doing);

// Replaces the file at `path` durably and atomically, by way of `path`.tmp.
absl::Status ReplaceFile(const std::string& path, absl::string_view content, DiskFaults* faults);

// NotFound if there is no such file; DataLoss above kMaxWholeFileBytes, more than any file that
// ReplaceFile writes.
inline constexpr int64_t kMaxWholeFileBytes = int64_t{1} << 30;
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// Whether the file system lets this file be read past the page cache.
bool TakesDirectReads(const std::string& path);

// Makes a file's content durable.
absl::Status SyncFile(const std::string& path, DiskFaults* faults);

// Makes the names in a directory durable.
absl::Status SyncDirectory(const std::string& path);

// A rename that is durable on return. Both names are in `directory`.
absl::Status RenameInside(const std::string& directory, const std::string& from,
                          const std::string& to);

// Removes a file or a directory tree; no error if there is none.
absl::Status RemoveTree(const std::string& path);

// Disk usage of a tree; unreadable parts count as 0.
int64_t TreeBytes(const std::string& path);

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
  // Hands the first `bytes` of the current buffer to the thread; waits for a free one.
  absl::Status Hand(int64_t bytes);
  // Waits until the thread has at most `pending` buffers.
  absl::Status WaitForThread(int64_t pending);
  void Run();
  absl::Status WriteOut(const std::byte* bytes, int64_t count, int64_t offset);

  const std::string path_;
  const int fd_;
  DiskFaults* const faults_;
  std::atomic<bool> direct_;
  std::unique_ptr<std::byte, Free> buffers_[kBuffers];              // [kBufferBytes] each, aligned
  const std::unique_ptr<std::byte, Free>* filling_ = &buffers_[0];  // number handed_ % kBuffers
  int64_t filled_ = 0;                                              // bytes in it
  int64_t size_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. The thread owns buffers n % kBuffers for n in [written_, handed_), the
  // caller the others; buffer n starts at file offset n · kBufferBytes.
  int64_t handed_ = 0;
  int64_t written_ = 0;
  int64_t bytes_[kBuffers] = {};
  bool stop_ = false;
  absl::Status status_;

  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_DISK_H_

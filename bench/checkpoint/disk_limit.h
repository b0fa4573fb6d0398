// The disk's own speed: one file of a given size, written from front to back and made durable, and
// read again past the page cache.
//
// Ownership: owns the file, removed at the end. Thread-safety: one measurement at a time.
#ifndef NIBBLE_BENCH_CHECKPOINT_DISK_LIMIT_H_
#define NIBBLE_BENCH_CHECKPOINT_DISK_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace nibble::bench {

class DiskLimit {
 public:
  // In `directory`; `bytes` is rounded up to whole blocks.
  DiskLimit(const std::string& directory, int64_t bytes);
  ~DiskLimit();
  DiskLimit(const DiskLimit&) = delete;
  DiskLimit& operator=(const DiskLimit&) = delete;

  // Waits until the file system is idle, so that removing earlier files does not count as part of a
  // measurement.
  void Settle();

  // Seconds for write() of the whole file and one fsync; 0 if the file system has no O_DIRECT,
  // negative if the disk failed.
  double WriteDirect();
  double WriteCached();
  // Seconds to read the file that was written last.
  double ReadDirect();

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  double Write(int flags);

  const std::string directory_;
  const std::string path_;
  const int64_t blocks_;
  std::unique_ptr<std::byte, Free> block_;  // [kBlock], random
};

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_CHECKPOINT_DISK_LIMIT_H_

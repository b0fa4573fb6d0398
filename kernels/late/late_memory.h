// The memory of the late device. Device memory faults when the host touches it; it is open only
// while the device works. Pinned memory faults while a copy that uses it is pending: the host
// may neither read data that is not copied out yet nor change data that is not copied in yet. Host
// work of a queue may, since it runs in order with the copies.
//
// Ownership: each owns its pages. Thread-safety: one thread, that of the device.
#ifndef NIBBLE_KERNELS_LATE_LATE_MEMORY_H_
#define NIBBLE_KERNELS_LATE_LATE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/memory.h"

namespace nibble {

class LateMemory : public Memory {
 public:
  // `drain` waits for everything enqueued: before a synchronous copy, and before memory is freed.
  static absl::StatusOr<std::unique_ptr<LateMemory>> Create(size_t bytes,
                                                            std::function<absl::Status()> drain);
  ~LateMemory() override;
  LateMemory(const LateMemory&) = delete;
  LateMemory& operator=(const LateMemory&) = delete;

  // Every byte is 0xff, a NaN where it is read as a number.
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

  // Whether the range is part of one buffer.
  bool Contains(const void* data, size_t bytes) const;
  size_t used() const { return used_; }
  // How often memory was freed.
  uint64_t frees() const { return frees_; }

  // While open, the host may touch the memory.
  void Open() { Protect(true); }
  void Close() { Protect(false); }

 private:
  LateMemory(char* base, size_t bytes, std::function<absl::Status()> drain)
      : base_(base), bytes_(bytes), drain_(std::move(drain)) {}
  void Free(void* data) override;
  void Protect(bool open);

  char* const base_;
  const size_t bytes_;
  const std::function<absl::Status()> drain_;
  std::map<size_t, size_t> buffers_;  // bytes, whole pages, by offset
  size_t used_ = 0;
  uint64_t frees_ = 0;
  size_t top_ = 0;  // end of the highest buffer so far
  bool open_ = false;
};

class PinnedMemory : public Memory {
 public:
  // `drain` waits for everything enqueued, before memory is freed.
  explicit PinnedMemory(std::function<absl::Status()> drain) : drain_(std::move(drain)) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

  // Memory of the caller, which is only recorded here, not protected.
  absl::Status Pin(void* host, size_t bytes);
  absl::Status Unpin(void* host);

  // From a copy's call to its end. FailedPrecondition, naming the address, if the range is not
  // pinned. `written`: by the copy.
  absl::Status Lend(const void* host, size_t bytes, bool written);
  void Return(const void* host, bool written);

  // While open, the host may touch all of it.
  void Open();
  void Close();

 private:
  struct Range {
    size_t bytes = 0;
    bool own = false;           // allocated here
    int read = 0, written = 0;  // copies still to run
  };
  void Free(void* data) override;
  // The range that begins at or before the address.
  std::map<uintptr_t, Range>::iterator Find(const void* host);
  void Protect(uintptr_t begin, const Range& range) const;

  const std::function<absl::Status()> drain_;
  bool open_ = false;
  std::map<uintptr_t, Range> ranges_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_LATE_LATE_MEMORY_H_

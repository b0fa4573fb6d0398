// How much of a memory is in use, the most that ever was, and a limit.
//
// Ownership: none. Thread-safety: any thread.
#ifndef NIBBLE_KERNELS_TENSOR_MEMORY_METER_H_
#define NIBBLE_KERNELS_TENSOR_MEMORY_METER_H_

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/tensor/memory.h"

namespace nibble {

class MemoryMeter {
 public:
  // `name`: of the memory, for errors. `most`: bytes that may be in use at once; 0: no limit.
  MemoryMeter(std::string name, size_t most) : name_(std::move(name)), most_(most) {}

  // Runs `allocate()`, which returns `bytes` bytes or null; ResourceExhausted beyond the limit, or
  // if there are none left.
  template <class Allocate>
  absl::Status Take(size_t bytes, void*& data, Allocate allocate) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (most_ > 0 && bytes > most_ - used_) {
      return absl::ResourceExhaustedError(absl::StrCat(name_, ": ", bytes, " bytes more than the ",
                                                       used_, " in use exceed the limit of ", most_,
                                                       " bytes"));
    }
    data = allocate();
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", bytes, " bytes left in ", name_, "; ", used_, " bytes are in use"));
    }
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    bytes_[data] = bytes;
    return absl::OkStatus();
  }
  void Release(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = bytes_.find(data);
    used_ -= found->second;
    bytes_.erase(found);
  }

  // The capacity is the limit.
  MemoryUse use() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {.capacity = most_, .used = used_, .peak = peak_};
  }
  size_t used() const { return use().used; }
  size_t peak() const { return use().peak; }

 private:
  const std::string name_;
  const size_t most_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  size_t used_ = 0, peak_ = 0;
  std::unordered_map<void*, size_t> bytes_;  // by allocation
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_TENSOR_MEMORY_METER_H_

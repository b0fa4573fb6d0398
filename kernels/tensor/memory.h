// The memory of tensors: host memory or a device's. Each backend has its own.
//
// Ownership: a Buffer frees its memory and must not outlive its Memory.
// Thread-safety: Memory's methods may be called from any thread; a Buffer is a unique owner.
#ifndef NIBBLE_KERNELS_TENSOR_MEMORY_H_
#define NIBBLE_KERNELS_TENSOR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace nibble {

class Memory;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Memory* memory, void* data, size_t bytes) : memory_(memory), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Memory* memory_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Bytes of a memory.
struct MemoryUse {
  size_t capacity = 0;  // that buffers may take together; 0: unknown
  size_t used = 0;      // by buffers
  size_t peak = 0;      // the most that buffers ever took
};

class Memory {
 public:
  virtual ~Memory() = default;
  virtual MemoryUse use() const { return {}; }
  // Aligned to at least 64 bytes, contents undefined. ResourceExhausted with the size and the name
  // of the memory if there is none left. Zero bytes give an empty buffer.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
  // Synchronous: they wait for work enqueued earlier.
  virtual absl::Status CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual absl::Status CopyOut(void* host, const void* device, size_t bytes) = 0;

 private:
  friend class Buffer;
  virtual void Free(void* data) = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) memory_->Free(data_);
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_TENSOR_MEMORY_H_

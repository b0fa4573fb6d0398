// Working memory of an operation: it grows to the largest request and is then reused.
//
// Ownership: owns its memory. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCRATCH_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCRATCH_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

namespace nibble::cpu {

template <class T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // At least `count` elements, 64-byte aligned, with undefined contents; invalidates earlier
  // results. Large ones request huge pages.
  T* Get(int64_t count) {
    if (count > size_) {
      data_.reset();
      const size_t bytes = count * sizeof(T);
      const std::align_val_t alignment{bytes < kHugePage ? kAlignment : kHugePage};
      data_ = {static_cast<T*>(::operator new(bytes, alignment)), Free{alignment}};
      // The system may refuse; pages of the usual size are only slower.
      if (bytes >= kHugePage) madvise(data_.get(), bytes, MADV_HUGEPAGE);
      size_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kHugePage = size_t{1} << 21;
  struct Free {
    std::align_val_t alignment{kAlignment};
    void operator()(T* p) const { ::operator delete(p, alignment); }
  };

  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCRATCH_H_

// Memory that an operation works in: it grows to the largest request seen and is then reused.
//
// Ownership: owns its memory. Thread-safety: one thread at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCRATCH_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

namespace nibble::cpu {

template <class T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // At least `count` elements, 64-byte aligned, of no particular value; what an earlier call gave
  // is void.
  T* Get(int64_t count) {
    if (count > size_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kAlignment})));
      size_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
  };

  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCRATCH_H_

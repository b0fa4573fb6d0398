// An open file descriptor, closed with its owner.
//
// Ownership: owns the descriptor. Thread-safety: none.
#ifndef NIBBLE_COMMON_DESCRIPTOR_H_
#define NIBBLE_COMMON_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace nibble {

class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~OwnedDescriptor() {
    if (descriptor_ >= 0) (void)close(descriptor_);
  }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(other.release()) {}
  // The other one owns the previous descriptor afterwards.
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  int get() const { return descriptor_; }  // negative: none
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_DESCRIPTOR_H_

// While an object of this class exists, arithmetic of its thread treats subnormal numbers, below
// 2^−126 in FP32, as zeros, in operands and results. They are a hundred times slower, and products
// of decays pass through them on their way to zero.
//
// Thread-safety: belongs to the thread that made it; scopes of one thread may nest.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SUBNORMALS_SCOPE_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SUBNORMALS_SCOPE_H_

#include <xmmintrin.h>

namespace nibble::cpu {

class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kZeroInputs); }
  ~SubnormalsAreZero() { _mm_setcsr(before_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  static constexpr unsigned kFlushResults = 0x8000, kZeroInputs = 0x0040;
  const unsigned before_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SUBNORMALS_SCOPE_H_

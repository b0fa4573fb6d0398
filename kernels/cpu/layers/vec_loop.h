// Iterates over rows of any width, sixteen elements at a time, the last of them fewer. Included by
// kernel sources, after vec.h.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_VEC_LOOP_H_
#define NIBBLE_KERNELS_CPU_LAYERS_VEC_LOOP_H_

#include <cstdint>

#include "kernels/cpu/layers/vec.h"
#include "kernels/tensor/matrix.h"

// After a lambda's parameters: as NIBBLE_INLINE.
#define NIBBLE_INLINE_LAMBDA __attribute__((always_inline))

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// The number of valid lanes: all sixteen, or fewer.
struct Whole {};
struct Part {
  int64_t n;
};

template <class T>
NIBBLE_INLINE Vec Load(const T* p, Whole) {
  return Load(p);
}
template <class T>
NIBBLE_INLINE Vec Load(const T* p, Part part) {
  return LoadPart(p, part.n);
}
template <class T>
NIBBLE_INLINE void Store(T* p, Vec v, Whole) {
  Store(p, v);
}
template <class T>
NIBBLE_INLINE void Store(T* p, Vec v, Part part) {
  StorePart(p, v, part.n);
}
// Zeros, or `other`, in the lanes that are not valid.
NIBBLE_INLINE Vec Present(Vec v, Whole) { return v; }
NIBBLE_INLINE Vec Present(Vec v, Part part) { return FirstLanes(v, part.n); }
NIBBLE_INLINE Vec PresentOr(Vec v, float, Whole) { return v; }
NIBBLE_INLINE Vec PresentOr(Vec v, float other, Part part) {
  return FirstLanes(v, part.n, Splat(other));
}

// run(i, lanes) for i = 0, 16, … below n.
template <class Run>
NIBBLE_INLINE void ForVecs(int64_t n, Run&& run) {
  int64_t i = 0;
  for (; i + kVec <= n; i += kVec) run(i, Whole{});
  if (i < n) run(i, Part{n - i});
}

template <class T>
NIBBLE_INLINE const T* Row(const ConstMatrix& m, int64_t row) {
  return static_cast<const T*>(m.data) + row * m.stride;
}
template <class T>
NIBBLE_INLINE T* Row(const MutableMatrix& m, int64_t row) {
  return static_cast<T*>(m.data) + row * m.stride;
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_VEC_LOOP_H_

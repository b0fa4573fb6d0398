#include "kernels/cpu/layers/rope_kernels.h"

#include <cstdint>

#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

template <class T>
void Rotate(const RopeRows<T>& rows) {
  const float sign = rows.inverse ? -1.0f : 1.0f;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t begin = rows.doc_begin == nullptr ? 0 : rows.doc_begin[r];
    const int64_t position = rows.first_row + r - begin;
    const float* cosines = rows.cosines + position * rows.half;
    const float* sines = rows.sines + position * rows.half;
    for (int head = 0; head < rows.heads; ++head) {
      T* low = rows.x + r * rows.stride + int64_t{head} * 2 * rows.half;
      T* high = low + rows.half;
      ForVecs(rows.half, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
        const Vec c = Load(cosines + i, lanes), s = Load(sines + i, lanes) * sign;
        const Vec a = Load(low + i, lanes), b = Load(high + i, lanes);
        Store(low + i, a * c - b * s, lanes);
        Store(high + i, b * c + a * s, lanes);
      });
    }
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

const RopeKernels RopeKernels::NIBBLE_ISA = {Rotate<float>, Rotate<uint16_t>};

}  // namespace nibble::cpu

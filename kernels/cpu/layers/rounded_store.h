// Stores that round, with the processor's own instruction in sets with AVX512-BF16 (others need
// nine instructions). Included by kernel sources, after vec.h.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ROUNDED_STORE_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ROUNDED_STORE_H_

#include "kernels/cpu/layers/vec.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// Rounded to T, to nearest even; the processor's own rounding treats subnormals as zero.
template <class L>
NIBBLE_INLINE void Put(float* to, Vec v, L lanes) {
  Store(to, v, lanes);
}
template <class L>
NIBBLE_INLINE void Put(uint16_t* to, Vec v, L lanes) {
#if defined(__AVX512BF16__)
  const __m256i rounded =
      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)));
  if constexpr (std::is_same_v<L, Whole>) {
    std::memcpy(to, &rounded, sizeof(rounded));
  } else {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << lanes.n) - 1), rounded);
  }
#else
  Store(to, v, lanes);
#endif
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ROUNDED_STORE_H_

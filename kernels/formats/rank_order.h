// Reductions over the ranks of a job, element by element and in rank order: ((x0 + x1) + x2) + …,
// with the same bits on a CPU and on a card, except that NaNs may have other payloads.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_RANK_ORDER_H_
#define NIBBLE_KERNELS_FORMATS_RANK_ORDER_H_

#include <cstdint>
#include <type_traits>

#include "kernels/formats/lanes.h"

namespace nibble {

// `sum`: of the ranks before; integers wrap around.
template <class T>
NIBBLE_LANES T AddOfNextRank(T sum, T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(x));
  } else {
    return sum + x;
  }
}

// Keeps the first NaN in rank order, and the first of equal values (0 and -0).
template <class T>
NIBBLE_LANES T MaxWithNextRank(T most, T x) {
  if (most != most) return most;
  return x > most || x != x ? x : most;
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_RANK_ORDER_H_

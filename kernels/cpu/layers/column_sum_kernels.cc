#include "kernels/cpu/layers/column_sum_kernels.h"

#include <algorithm>

#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

template <class T>
void SumRows(const ConstMatrix& m, int64_t begin, int64_t end, float* sums) {
  std::fill(sums, sums + m.cols, 0.0f);
  int64_t row = begin;
  // Four rows per pass over the sums, which stay in the first-level cache.
  for (; row + 4 <= end; row += 4) {
    const T *a = Row<T>(m, row), *b = Row<T>(m, row + 1);
    const T *c = Row<T>(m, row + 2), *d = Row<T>(m, row + 3);
    ForVecs(m.cols, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec four =
          (Load(a + i, lanes) + Load(b + i, lanes)) + (Load(c + i, lanes) + Load(d + i, lanes));
      Store(sums + i, Load(sums + i, lanes) + four, lanes);
    });
  }
  for (; row < end; ++row) {
    const T* a = Row<T>(m, row);
    ForVecs(m.cols, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      Store(sums + i, Load(sums + i, lanes) + Load(a + i, lanes), lanes);
    });
  }
}

void Combine(const float* partial, int64_t blocks, int64_t stride, int64_t begin, int64_t end,
             float* out) {
  constexpr int64_t kWide = 64;
  for (int64_t j = begin; j < end; j += kWide) {
    const int64_t wide = std::min(kWide, end - j);
    double sum[kWide] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      const float* from = partial + b * stride + j;
      if (wide == kWide) {
        for (int64_t i = 0; i < kWide; ++i) sum[i] += static_cast<double>(from[i]);
      } else {
        for (int64_t i = 0; i < wide; ++i) sum[i] += static_cast<double>(from[i]);
      }
    }
    for (int64_t i = 0; i < wide; ++i) {
      out[j + i] = static_cast<float>(static_cast<double>(out[j + i]) + sum[i]);
    }
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

const ColumnSumKernels ColumnSumKernels::NIBBLE_ISA = {{SumRows<float>, SumRows<uint16_t>},
                                                       Combine};

}  // namespace nibble::cpu

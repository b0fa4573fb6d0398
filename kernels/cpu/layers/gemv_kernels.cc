#include "kernels/cpu/layers/gemv_kernels.h"

#include <cstdint>

#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

constexpr int kMostRows = 4;
// As many sums as fit the registers.
constexpr int Outputs(int rows) { return rows <= 2 || kRegister == 64 ? 4 : 2; }

NIBBLE_INLINE void Put(float* y, float x) { *y = x; }
NIBBLE_INLINE void Put(uint16_t* y, float x) { StorePart(y, Splat(x), 1); }

template <int kRows, int kOutputs, class T, class Y>
NIBBLE_INLINE void OutputBlock(const GemvTask<T, Y>& task, int64_t row, int64_t output) {
  const T* x = task.x + row * task.x_stride;
  const T* w = task.w + output * task.in;
  Vec sum[kRows][kOutputs] = {};
  ForVecs(task.in, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Vec weights[kOutputs];
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) weights[o] = Load(w + o * task.in + i, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec v = Load(x + r * task.x_stride + i, lanes);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o) sum[r][o] = v * weights[o] + sum[r][o];
    }
  });
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) {
      Put(task.y + (row + r) * task.y_stride + output + o, Sum(sum[r][o]));
    }
  }
}

template <int kRows, class T, class Y>
void RowBlock(const GemvTask<T, Y>& task, int64_t row) {
  constexpr int kOutputs = Outputs(kRows);
  int64_t o = 0;
  for (; o + kOutputs <= task.outputs; o += kOutputs) OutputBlock<kRows, kOutputs>(task, row, o);
  for (; o < task.outputs; ++o) OutputBlock<kRows, 1>(task, row, o);
}

template <class T, class Y>
void Gemv(const GemvTask<T, Y>& task) {
  for (int64_t row = 0; row < task.rows; row += kMostRows) {
    switch (task.rows - row) {
      case 1:
        RowBlock<1>(task, row);
        break;
      case 2:
        RowBlock<2>(task, row);
        break;
      case 3:
        RowBlock<3>(task, row);
        break;
      default:
        RowBlock<kMostRows>(task, row);
    }
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

const GemvKernels GemvKernels::NIBBLE_ISA = {Gemv<float, float>, Gemv<uint16_t, uint16_t>,
                                             Gemv<uint16_t, float>};

}  // namespace nibble::cpu

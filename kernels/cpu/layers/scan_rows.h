// Kernels of the scan over rows: scaling and packing, the recurrence of states, and the operations
// after a matmul (scan_kernels.h). Included by scan_kernels.cc, after vec.h.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_ROWS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_vec.h"
#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// row(k, line, lanes) for every depth k in `range` and sixteen lines, into a packed right operand
// [rows, cols]; zeros at other depths.
template <class T, class Row>
NIBBLE_INLINE void PackRows(ScanRange range, int rows, int cols, T* packed, const ScanAhead& ahead,
                            Row&& row) {
  Asker asker(ahead);
  const int64_t group = PanelGroup(rows);
  const auto zero = [&](T* to, int64_t from, int64_t until) {
    std::memset(to + from * kPanelLines, 0, (until - from) * kPanelLines * sizeof(T));
  };
  ForVecs(cols, [&](int64_t line, auto lanes) NIBBLE_INLINE_LAMBDA {
    T* to = packed + line / kPanelLines * group;
    int64_t k = range.begin;
    zero(to, 0, k / 2 * 2);
    if (k % 2 != 0 && k < range.end) {
      PutPair(to + (k - 1) * kPanelLines, Vec{}, row(k, line, lanes));
      ++k;
    }
    for (; k + 2 <= range.end; k += 2) {
      asker.NextLine();
      const Vec even = row(k, line, lanes);
      const Vec odd = row(k + 1, line, lanes);
      PutPair(to + k * kPanelLines, even, odd);
    }
    if (k < range.end) {
      PutPair(to + k * kPanelLines, row(k, line, lanes), Vec{});
      k += 2;
    }
    zero(to, k, PaddedPanelDepth(rows));
  });
}

template <class T>
void ScalePack(TokenBlock<const T> x, const float* scale, ScanRange range, int rows, int cols,
               T* packed, const ScanAhead& ahead) {
  PackRows(range, rows, cols, packed, ahead,
           [&](int64_t k, int64_t line, auto lanes) NIBBLE_INLINE_LAMBDA {
             return Load(x.data + k * x.stride + line, lanes) * scale[k];
           });
}

template <class T>
void ScaleRows(TokenBlock<const T> x, const float* scale, int begin, int rows, int cols, T* out) {
  std::memset(out, 0, int64_t{std::min(begin, rows)} * cols * sizeof(T));
  for (int64_t r = begin; r < rows; ++r) {
    ForVecs(cols, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      Put(out + r * cols + c, Load(x.data + r * x.stride + c, lanes) * scale[r], lanes);
    });
  }
}

template <class T>
void CarryPacked(float* state, int rows, int cols, bool decays, float decay, T* out,
                 const ScanAhead& ahead) {
  PackRows({0, rows}, rows, cols, out, ahead,
           [&](int64_t k, int64_t line, auto lanes) NIBBLE_INLINE_LAMBDA {
             float* at = state + k * cols + line;
             const Vec here = Load(at, lanes);
             if (decays) Store(at, here * decay, lanes);
             return here;
           });
}

template <class T>
void CarryRows(float* state, int rows, int cols, bool decays, float decay, TokenBlock<T> out,
               const ScanAhead& ahead) {
  Asker asker(ahead);
  for (int64_t r = 0; r < rows; ++r) {
    ForVecs(cols, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      asker.NextLine();
      float* at = state + r * cols + c;
      const Vec here = Load(at, lanes);
      Put(out.data + r * out.stride + c, here, lanes);
      if (decays) Store(at, here * decay, lanes);
    });
  }
}

// Each row in FP32, the sum of the rows in float64.
template <class T>
double Dot(const float* gradient, TokenBlock<const T> state, int rows, int cols) {
  double total = 0;
  alignas(64) float sums[kVec][kVec] = {}, totals[kVec];
  for (int64_t r = 0; r < rows; ++r) {
    Vec sum = {};
    ForVecs(cols, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      sum = sum +
            Load(gradient + r * cols + c, lanes) * Load(state.data + r * state.stride + c, lanes);
    });
    Store(sums[r % kVec], sum);
    if (r % kVec == kVec - 1 || r == rows - 1) {
      Store(totals, SumRows(sums));
      for (const float x : totals) total += x;
      std::memset(sums, 0, sizeof(sums));
    }
  }
  return total;
}

template <class T>
void FinishY(int rows, int entering, int cols, const float* inside, const float* from_state,
             const float* enter, float d, TokenBlock<const T> x, TokenBlock<T> y) {
  for (int64_t i = 0; i < rows; ++i) {
    const bool sees = i < entering;
    ForVecs(cols, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      Vec sum = Load(inside + i * cols + c, lanes) + Load(x.data + i * x.stride + c, lanes) * d;
      if (sees) sum = sum + Load(from_state + i * cols + c, lanes) * enter[i];
      Put(y.data + i * y.stride + c, sum, lanes);
    });
  }
}

template <class T>
void FinishDx(int rows, int leaving, int cols, const float* inside, const float* from_state,
              const float* leave, const float* delta, float d, TokenBlock<const T> x,
              TokenBlock<const T> dy, TokenBlock<T> dx, float* x_du, float* left) {
  alignas(64) float du_sums[kVec][kVec], state_sums[kVec][kVec];
  for (int64_t block = 0; block < rows; block += kVec) {
    for (int64_t r = 0; r < kVec; ++r) {
      const int64_t j = block + r;
      Vec du_sum = {}, state_sum = {};
      if (j < rows) {
        const bool leaves = j >= leaving;
        ForVecs(cols, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
          const Vec xj = Load(x.data + j * x.stride + c, lanes);
          Vec du = Load(inside + j * cols + c, lanes);
          if (leaves) {
            const Vec from = Load(from_state + j * cols + c, lanes) * leave[j];
            du = du + from;
            state_sum = state_sum + xj * from;
          }
          du_sum = du_sum + xj * du;
          const Vec direct = Load(dy.data + j * dy.stride + c, lanes) * d;
          Put(dx.data + j * dx.stride + c, du * delta[j] + direct, lanes);
        });
      }
      Store(du_sums[r], du_sum);
      Store(state_sums[r], state_sum);
    }
    Store(x_du + block, SumRows(du_sums));
    Store(left + block, SumRows(state_sums) * Load(delta + block));
  }
}

template <class T>
void FinishDc(int rows, int entering, int cols, const float* from_state, const float* enter,
              TokenBlock<const T> c, float* dc, float* entered) {
  alignas(64) float sums[kVec][kVec];
  for (int64_t block = 0; block < rows; block += kVec) {
    if (block >= entering) {
      Store(entered + block, Vec{});
      continue;
    }
    for (int64_t r = 0; r < kVec; ++r) {
      const int64_t i = block + r;
      Vec sum = {};
      if (i < entering) {
        ForVecs(cols, [&](int64_t n, auto lanes) NIBBLE_INLINE_LAMBDA {
          const Vec from = Load(from_state + i * cols + n, lanes) * enter[i];
          sum = sum + from * Load(c.data + i * c.stride + n, lanes);
          Store(dc + i * cols + n, Load(dc + i * cols + n, lanes) + from, lanes);
        });
      }
      Store(sums[r], sum);
    }
    Store(entered + block, SumRows(sums));
  }
}

static void Add(const float* from, int64_t n, float* into) {
  ForVecs(n, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Store(into + i, Load(into + i, lanes) + Load(from + i, lanes), lanes);
  });
}

template <class T>
void RoundRows(const float* from, int rows, int cols, TokenBlock<T> to) {
  for (int64_t r = 0; r < rows; ++r) {
    ForVecs(cols, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      Put(to.data + r * to.stride + c, Load(from + r * cols + c, lanes), lanes);
    });
  }
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_ROWS_H_

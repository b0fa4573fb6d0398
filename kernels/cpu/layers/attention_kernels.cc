#include "kernels/cpu/layers/attention_kernels.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/layers/attention_vec.h"
#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/panel_pack.h"
#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// Sixteen vectors, one per row of a group, reduced lane by lane into one lane per row.
struct alignas(64) RowGroup {
  float lanes[kVec][kVec];
};
template <class Combine>
NIBBLE_INLINE Vec ReduceRows(const RowGroup& rows, Combine&& combine) {
#if defined(__AVX512F__)
  // Halves of two rows side by side, then quarters of four, and so on: half the shuffles of a
  // transposition. Rows come in an order that leaves lane i with row i.
  const auto row = [&](int i) NIBBLE_INLINE_LAMBDA { return _mm512_load_ps(rows.lanes[i]); };
  const auto merge = [&](__m512 a, __m512 b) NIBBLE_INLINE_LAMBDA {
    return reinterpret_cast<__m512>(combine(reinterpret_cast<Vec>(a), reinterpret_cast<Vec>(b)));
  };
  const auto halves = [&](__m512 a, __m512 b) NIBBLE_INLINE_LAMBDA {
    return merge(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const auto four = [&](int i) NIBBLE_INLINE_LAMBDA {  // rows i, i + 4, i + 8, i + 12
    const __m512 a = halves(row(i), row(i + 4)), b = halves(row(i + 8), row(i + 12));
    return merge(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const auto eight = [&](int i) NIBBLE_INLINE_LAMBDA {  // and those after them
    const __m512d a = _mm512_castps_pd(four(i)), b = _mm512_castps_pd(four(i + 1));
    return merge(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                 _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  };
  const __m512 a = eight(0), b = eight(2);
  return reinterpret_cast<Vec>(merge(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)));
#else
  RowGroup columns;
  TransposeWords(rows.lanes, sizeof(rows.lanes[0]), columns.lanes);
  Vec result = Load(columns.lanes[0]);
  for (int i = 1; i < kVec; ++i) result = combine(result, Load(columns.lanes[i]));
  return result;
#endif
}

// The largest of a row's visible columns, lane by lane; kEmptyTop in lanes without any.
template <bool kWhole>
NIBBLE_INLINE Vec LargestVisible(const float* s, const StripMask& mask, int row) {
  Vec largest[2] = {Splat(kEmptyTop), Splat(kEmptyTop)};
  const auto whole = [&](int c) NIBBLE_INLINE_LAMBDA {
    largest[0] = Max(largest[0], Load(s + c));
    largest[1] = Max(largest[1], Load(s + c + kVec));
  };
  if constexpr (kWhole) {
#pragma GCC unroll 4
    for (int c = 0; c < kKeyBlock; c += kChunk) whole(c);
    return Max(largest[0], largest[1]);
  }
  const Visible visible = VisibleOf(mask, row);
  const auto edge = [&](int c) NIBBLE_INLINE_LAMBDA {
    for (int i = 0; i < 2; ++i) {
      const int at = c + i * kVec;
      largest[i] = Max(largest[i], Masked(visible, at, Load(s + at), Splat(kEmptyTop)));
    }
  };
  ForChunks(
      mask.from, mask.to, visible, [](int) NIBBLE_INLINE_LAMBDA {}, edge, whole);
  return Max(largest[0], largest[1]);
}

// A row's probabilities, and their sum lane by lane.
template <bool kWhole, class T>
NIBBLE_INLINE Vec WriteWeights(const SoftmaxStep<T>& step, int row, Vec top) {
  float* s = step.s + row * kKeyBlock;
  // Thirty-two columns of a row are contiguous in a packed a and in s.
  T* p;
  constexpr int64_t kStep = sizeof(T) == 2 ? kPanelTile : kChunk;
  if constexpr (sizeof(T) == 2) {
    p = step.p + PanelOffsetA<T>(row, 0, kKeyBlock);
  } else {
    p = s;
  }
  const Vec factor = Splat(step.factor);
  Vec sum[2] = {};
  const auto whole = [&](int c) NIBBLE_INLINE_LAMBDA {
    const Vec w0 = Exp2<T>(Load(s + c) * factor - top);
    const Vec w1 = Exp2<T>(Load(s + c + kVec) * factor - top);
    sum[0] = sum[0] + w0;
    sum[1] = sum[1] + w1;
    StorePair(p + c / kChunk * kStep, w0, w1);
  };
  if constexpr (kWhole) {
#pragma GCC unroll 4
    for (int c = 0; c < kKeyBlock; c += kChunk) whole(c);
    return sum[0] + sum[1];
  }
  const Visible visible = VisibleOf(step.mask, row);
  const auto hidden = [&](int c)
                          NIBBLE_INLINE_LAMBDA { StorePair(p + c / kChunk * kStep, Vec{}, Vec{}); };
  const auto edge = [&](int c) NIBBLE_INLINE_LAMBDA {
    Vec w[2];
    for (int i = 0; i < 2; ++i) {
      const int at = c + i * kVec;
      w[i] = Masked(visible, at, Exp2<T>(Load(s + at) * factor - top), Vec{});
      sum[i] = sum[i] + w[i];
    }
    StorePair(p + c / kChunk * kStep, w[0], w[1]);
  };
  ForChunks(step.mask.from, step.mask.to, visible, hidden, edge, whole);
  return sum[0] + sum[1];
}

template <bool kWhole, class T>
NIBBLE_INLINE void SoftmaxOf(const SoftmaxStep<T>& step) {
  RowGroup lanes;
  alignas(64) float tops[kVec], shrink[kVec];
  for (int group = 0; group < step.mask.rows; group += kVec) {
    for (int i = 0; i < kVec; ++i) {
      const float* s = step.s + (group + i) * kKeyBlock;
      Store(lanes.lanes[i], LargestVisible<kWhole>(s, step.mask, group + i));
    }
    const Vec largest =
        ReduceRows(lanes, [](Vec a, Vec b) NIBBLE_INLINE_LAMBDA { return Max(a, b); });
    const Vec old = Load(step.top + group);
    const Vec top = Max(old, largest * step.factor);
    const Vec scale = Exp2<T>(old - top);
    Store(tops, top);
    Store(shrink, scale);
    for (int i = 0; i < kVec; ++i) {
      Store(lanes.lanes[i], WriteWeights<kWhole>(step, group + i, Splat(tops[i])));
    }
    const Vec added = ReduceRows(lanes, [](Vec a, Vec b) NIBBLE_INLINE_LAMBDA { return a + b; });
    Store(step.top + group, top);
    Store(step.sum + group, Load(step.sum + group) * scale + added);
    if (step.o == nullptr) continue;
    for (int i = 0; i < kVec; ++i) {
      if (shrink[i] == 1.0f) continue;
      float* o = step.o + (group + i) * step.o_stride;
      for (int64_t c = 0; c < step.o_stride; c += kVec) Store(o + c, Load(o + c) * shrink[i]);
    }
  }
}

template <class T>
void Softmax(const SoftmaxStep<T>& step) {
  if (SeesWholeBlock(step.mask)) {
    SoftmaxOf<true>(step);
  } else {
    SoftmaxOf<false>(step);
  }
}

template <class T>
void Finish(const SoftmaxFinish<T>& rows) {
  constexpr float kLn2 = 0.693147180559945f;
  Vec largest = Splat(*rows.amax);
  alignas(64) float inverse[kVec];
  for (int group = 0; group < rows.rows; group += kVec) {
    const int count = std::min(kVec, rows.rows - group);
    const Vec sum = Load(rows.sum + group);
    const Vec lse = Load(rows.top + group) * kLn2 + LogOfSum(sum);
    if (count == kVec) {
      Store(rows.lse + group, lse);
    } else {
      StorePart(rows.lse + group, lse, count);
    }
    Store(inverse, 1.0f / sum);
    for (int i = 0; i < count; ++i) {
      const float* o = rows.o + (group + i) * rows.o_stride;
      T* out = rows.out + (group + i) * rows.out_stride;
      int c = 0;
      for (; c + kVec <= rows.cols; c += kVec) {
        const Vec x = Load(o + c) * inverse[i];
        Store(out + c, x);
        largest = Max(Abs(Rounded<T>(x)), largest);
      }
      if (c < rows.cols) {
        const Vec x = FirstLanes(Load(o + c) * inverse[i], rows.cols - c);
        StorePart(out + c, x, rows.cols - c);
        largest = Max(Abs(Rounded<T>(x)), largest);
      }
    }
  }
  *rows.amax = Largest(largest);
}

// Probabilities and score gradients of a row in columns c … c + 31, masked by `visible` if not
// null.
struct RowGradient {
  Vec p[2], ds[2];
};
template <class T>
NIBBLE_INLINE RowGradient GradientOf(const BackwardStep<T>& step, int row, int c,
                                     const Visible* visible) {
  RowGradient g;
  const float* s = step.s + row * kKeyBlock + c;
  const float* dp = step.dp + row * kKeyBlock + c;
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    g.p[i] = Exp2<T>(Load(s + i * kVec) * step.factor - step.lse2[row]);
    g.ds[i] = g.p[i] * (Load(dp + i * kVec) - step.dot[row]);
    if (visible != nullptr) {
      g.p[i] = Masked(*visible, c + i * kVec, g.p[i], Vec{});
      g.ds[i] = Masked(*visible, c + i * kVec, g.ds[i], Vec{});
    }
  }
  return g;
}

template <class T>
void Backward(const BackwardStep<T>& step) {
  constexpr int64_t kGroup = PanelGroup(kQueryBlock);
  for (int row = 0; row < kStrip; row += 2) {
    const Visible even = VisibleOf(step.mask, row), odd = VisibleOf(step.mask, row + 1);
    T* row_a;
    constexpr int64_t kStep = sizeof(T) == 2 ? kPanelTile : kChunk;
    constexpr int64_t kNextRow = sizeof(T) == 2 ? kPanelDepth : kKeyBlock;
    if constexpr (sizeof(T) == 2) {
      row_a = step.ds_a + PanelOffsetA<T>(row, 0, kKeyBlock);
    } else {
      row_a = step.ds_a + row * kKeyBlock;
    }
    const int64_t depth = PanelOffsetB<T>(0, row, kQueryBlock);
    const auto store = [&](int c, const RowGradient& a, const RowGradient& b) NIBBLE_INLINE_LAMBDA {
      const int64_t at = depth + c / kVec * kGroup;
      T* line = row_a + c / kChunk * kStep;
      StoreRowsOfB(step.p_b + at, kGroup, a.p, b.p);
      StoreBoth(step.ds_b + at, kGroup, line, line + kNextRow, a.ds, b.ds);
    };
    // Chunks that are wholly visible to both rows; at the ends part of a chunk may be hidden.
    const Visible both = {std::max(even.first, odd.first), std::min(even.end, odd.end)};
    const auto partly = [&](int c) NIBBLE_INLINE_LAMBDA {
      store(c, GradientOf(step, row, c, &even), GradientOf(step, row + 1, c, &odd));
    };
    const auto whole = [&](int c) NIBBLE_INLINE_LAMBDA {
      store(c, GradientOf<T>(step, row, c, nullptr), GradientOf<T>(step, row + 1, c, nullptr));
    };
    const auto hidden = [&](int c) NIBBLE_INLINE_LAMBDA {
      const bool neither =
          (c + kChunk <= even.first || even.end <= c) && (c + kChunk <= odd.first || odd.end <= c);
      if (neither) {
        store(c, RowGradient{}, RowGradient{});
      } else {
        partly(c);
      }
    };
    ForChunks(step.mask.from, step.mask.to, both, hidden, partly, whole);
  }
}

template <class T>
void Dots(const RowDots<T>& rows) {
  constexpr float kLog2E = 1.44269504088896341f;
  for (int i = 0; i < rows.rows; ++i) {
    const T* out = rows.out + i * rows.out_stride;
    const T* dout = rows.dout + i * rows.dout_stride;
    Vec sum = {};
    int c = 0;
    for (; c + kVec <= rows.cols; c += kVec) sum = sum + Load(out + c) * Load(dout + c);
    if (c < rows.cols) {
      sum = sum + LoadPart(out + c, rows.cols - c) * LoadPart(dout + c, rows.cols - c);
    }
    rows.dot[i] = Sum(sum);
    rows.lse2[i] = rows.lse[i] * kLog2E;
  }
}

template <class T>
void StoreGradient(const GradientStore<T>& g) {
  alignas(64) float square[kVec * kVec];
  for (int64_t i = 0; i < g.rows; i += kVec) {
    const int64_t rows = std::min<int64_t>(kVec, g.rows - i);
    for (int64_t c = 0; c < g.cols; c += kVec) {
      const int64_t cols = std::min<int64_t>(kVec, g.cols - c);
      const float* from = g.from + i * g.from_stride + c;
      int64_t stride = g.from_stride;
      if (g.transposed) {
        TransposeWords(g.from + c * g.from_stride + i, g.from_stride * 4, square);
        from = square;
        stride = kVec;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const Vec x = Load(from + r * stride) * g.factor;
        T* to = g.to + (i + r) * g.to_stride + c;
        if (cols == kVec) {
          Store(to, x);
        } else {
          StorePart(to, x, cols);
        }
      }
    }
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

template <class T>
const AttentionKernels<T> AttentionKernels<T>::NIBBLE_ISA = {Softmax<T>, Finish<T>, Backward<T>,
                                                             Dots<T>, StoreGradient<T>};
#if !defined(__AVX512BF16__)
template const AttentionKernels<float> AttentionKernels<float>::NIBBLE_ISA;
#endif
template const AttentionKernels<uint16_t> AttentionKernels<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu

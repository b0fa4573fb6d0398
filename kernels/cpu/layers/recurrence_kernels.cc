#include "kernels/cpu/layers/recurrence_kernels.h"

#include <cstdint>

#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// Input row t of the sequence, for t from −(width − 1) on.
template <class T, class Lanes>
NIBBLE_INLINE Vec Input(const ConvTokens<T>& conv, int64_t t, int64_t channel, Lanes lanes) {
  if (t >= 0) return Load(conv.in + t * conv.in_stride + channel, lanes);
  return Load(conv.window + (t + conv.width - 1) * conv.param_stride + channel, lanes);
}

template <class T>
void Conv(const ConvTokens<T>& conv) {
  const int past = conv.width - 1;
  for (int64_t t = 0; t < conv.tokens; ++t) {
    ForVecs(conv.channels, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      Vec sum = Load(conv.bias + c, lanes);
      for (int w = 0; w < conv.width; ++w) {
        const Vec tap = Load(conv.taps + w * conv.param_stride + c, lanes);
        sum = tap * Input(conv, t - past + w, c, lanes) + sum;
      }
      Store(conv.out + t * conv.out_stride + c, Silu(sum), lanes);
    });
  }
  // Oldest first: a row is read before it is overwritten.
  for (int w = 0; w < past; ++w) {
    ForVecs(conv.channels, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec row = Input(conv, conv.tokens - past + w, c, lanes);
      Store(conv.window + w * conv.param_stride + c, row, lanes);
    });
  }
}

template <class T>
NIBBLE_INLINE void Widen(const T* from, int64_t n, float* to) {
  ForVecs(n, [&](int64_t i, auto lanes)
                 NIBBLE_INLINE_LAMBDA { Store(to + i, Load(from + i, lanes), lanes); });
}

// Columns [p, p + kVecs vectors) of the state, or the remaining lanes at its end.
template <int kVecs, class T, class Lanes>
NIBBLE_INLINE void Columns(const ScanTokens<T>& scan, int64_t t, int64_t p, Lanes lanes) {
  const float* b = scan.room;
  const float* c = scan.room + scan.state;
  const T* x = scan.x + t * scan.stride + p;
  float* s = scan.s + p;
  const float decay = scan.decay[t];
  Vec value[kVecs], input[kVecs], y[kVecs];
  for (int i = 0; i < kVecs; ++i) {
    value[i] = Load(x + i * kVec, lanes);
    input[i] = value[i] * scan.delta[t];
    y[i] = value[i] * scan.d;
  }
  for (int n = 0; n < scan.state; ++n) {
    float* row = s + int64_t{n} * scan.head_dim;
#pragma GCC unroll 4
    for (int i = 0; i < kVecs; ++i) {
      const Vec next = Load(row + i * kVec, lanes) * decay + input[i] * b[n];
      y[i] = next * c[n] + y[i];
      Store(row + i * kVec, next, lanes);
    }
  }
  for (int i = 0; i < kVecs; ++i) {
    Store(scan.y + t * scan.y_stride + p + i * kVec, y[i], lanes);
  }
}

template <class T>
void Scan(const ScanTokens<T>& scan) {
  for (int64_t t = 0; t < scan.tokens; ++t) {
    Widen(scan.b + t * scan.stride, scan.state, scan.room);
    Widen(scan.c + t * scan.stride, scan.state, scan.room + scan.state);
    int64_t p = 0;
    for (; p + 4 * kVec <= scan.head_dim; p += 4 * kVec) Columns<4>(scan, t, p, Whole{});
    for (; p + kVec <= scan.head_dim; p += kVec) Columns<1>(scan, t, p, Whole{});
    if (p < scan.head_dim) Columns<1>(scan, t, p, Part{scan.head_dim - p});
  }
}

}  // namespace
}  // namespace NIBBLE_ISA

template <class T>
const RecurrenceKernels<T> RecurrenceKernels<T>::NIBBLE_ISA = {Conv<T>, Scan<T>};
template const RecurrenceKernels<float> RecurrenceKernels<float>::NIBBLE_ISA;
template const RecurrenceKernels<uint16_t> RecurrenceKernels<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu

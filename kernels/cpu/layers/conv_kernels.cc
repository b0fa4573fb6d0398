// Vectors are along the channels. With width four, eight consecutive rows whose whole past is in
// their document are computed together, so that each input is loaded and widened about once; rows
// at the beginning of documents, and other widths, are computed one by one.
#include "kernels/cpu/layers/conv_kernels.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/rounded_store.h"
#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"
#include "model/limits.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

constexpr int kFastWidth = 4;
constexpr int kPast = kFastWidth - 1;
constexpr int kTile = 8;

// Whether rows [begin, end) depend on all kPast rows before them.
NIBBLE_INLINE bool SeeAll(const uint8_t* reach, int64_t begin, int64_t end) {
  uint8_t least = kPast;
  for (int64_t r = begin; r < end; ++r) least = reach[r] < least ? reach[r] : least;
  return least == kPast;
}

// d SiLU(x) / dx = σ(x)(1 + x(1 − σ(x)))
NIBBLE_INLINE Vec SiluSlope(Vec x) {
  const Vec sigmoid = Sigmoid(x);
  return sigmoid * (1.0f + x * (1.0f - sigmoid));
}

struct Taps {
  Vec weight[kFastWidth];
  Vec bias;
};
template <class L>
NIBBLE_INLINE Taps LoadTaps(const ConvShape& shape, const ConvParams& params, int64_t c, L lanes) {
  Taps taps;
#pragma GCC unroll 4
  for (int w = 0; w < kFastWidth; ++w) {
    taps.weight[w] = Load(params.taps + w * shape.param_stride + c, lanes);
  }
  taps.bias = Load(params.bias + c, lanes);
  return taps;
}

// past[0]: the input kPast rows ago.
NIBBLE_INLINE Vec Convolve(const Taps& taps, const Vec* past) {
  Vec sum = taps.bias;
#pragma GCC unroll 4
  for (int w = 0; w < kFastWidth; ++w) sum = sum + taps.weight[w] * past[w];
  return sum;
}

// The convolution at row r, of any width.
template <class T, class L>
NIBBLE_INLINE Vec ConvolveAt(const ConvShape& shape, const ConvParams& params, int64_t r, int64_t c,
                             const T* in, L lanes) {
  Vec sum = Load(params.bias + c, lanes);
  for (int w = shape.width - 1 - params.reach[r]; w < shape.width; ++w) {
    const T* from = in + (r - (shape.width - 1) + w) * shape.in_stride + c;
    sum = sum + Load(params.taps + w * shape.param_stride + c, lanes) * Load(from, lanes);
  }
  return sum;
}

template <class T>
void ForwardTile(const ConvShape& shape, const ConvParams& params, int64_t r, const T* in, T* out) {
  ForVecs(shape.channels, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
    const Taps taps = LoadTaps(shape, params, c, lanes);
    Vec x[kPast + kTile];
#pragma GCC unroll 11
    for (int i = 0; i < kPast + kTile; ++i) {
      x[i] = Load(in + (r - kPast + i) * shape.in_stride + c, lanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      const Vec sum = Convolve(taps, x + i);
      Put(out + (r + i) * shape.out_stride + c, Silu(sum), lanes);
    }
  });
}

template <class T>
void ConvForward(const ConvShape& shape, const ConvParams& params, int64_t row_begin,
                 int64_t row_end, const T* in, T* out) {
  int64_t r = row_begin;
  while (r < row_end) {
    if (shape.width == kFastWidth && r + kTile <= row_end && SeeAll(params.reach, r, r + kTile)) {
      ForwardTile(shape, params, r, in, out);
      r += kTile;
      continue;
    }
    ForVecs(shape.channels, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec sum = ConvolveAt(shape, params, r, c, in, lanes);
      Put(out + r * shape.out_stride + c, Silu(sum), lanes);
    });
    ++r;
  }
}

// The operands of one call of Backward. `carry`: the gradients before SiLU of the last width − 1
// rows; a row's input gradient is complete width − 1 rows later.
template <class T>
struct BackwardRows {
  const ConvShape& shape;
  const ConvParams& params;
  const T* in;
  const T* dout;
  T* din;
  float* sums;
  float* carry;
};

template <class T>
void BackwardTile(const BackwardRows<T>& b, int64_t r) {
  const ConvShape& shape = b.shape;
  ForVecs(shape.channels, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
    const Taps taps = LoadTaps(shape, b.params, c, lanes);
    Vec x[kPast + kTile], g[kPast + kTile];
#pragma GCC unroll 11
    for (int i = 0; i < kPast + kTile; ++i) {
      x[i] = Load(b.in + (r - kPast + i) * shape.in_stride + c, lanes);
    }
#pragma GCC unroll 3
    for (int i = 0; i < kPast; ++i) g[i] = Load(b.carry + i * shape.channels + c, lanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      const Vec dy = Load(b.dout + (r + i) * shape.dout_stride + c, lanes);
      g[kPast + i] = dy * SiluSlope(Convolve(taps, x + i));
    }
#pragma GCC unroll 4
    for (int w = 0; w < kFastWidth; ++w) {
      float* to = b.sums + w * shape.param_stride + c;
      Vec sum = Load(to, lanes);
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i) sum = sum + g[kPast + i] * x[i + w];
      Store(to, sum, lanes);
    }
    float* to = b.sums + kFastWidth * shape.param_stride + c;
    Vec sum = Load(to, lanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      sum = sum + g[kPast + i];
      Vec dx = taps.weight[kPast] * g[i];
#pragma GCC unroll 3
      for (int w = kPast - 1; w >= 0; --w) dx = dx + taps.weight[w] * g[i + kPast - w];
      Put(b.din + (r - kPast + i) * shape.din_stride + c, dx, lanes);
    }
    Store(to, sum, lanes);
#pragma GCC unroll 3
    for (int i = 0; i < kPast; ++i) Store(b.carry + i * shape.channels + c, g[kTile + i], lanes);
  });
}

// Row r enters the carry, and the sums if `own`; the row that leaves the carry is written if it is
// `first` or later.
template <class T>
void BackwardRow(const BackwardRows<T>& b, int64_t r, bool own, int64_t first) {
  const ConvShape& shape = b.shape;
  const uint8_t* reach = b.params.reach;
  const int past = shape.width - 1;
  const int64_t done = r - past;
  ForVecs(shape.channels, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
    Vec g[kMaxConvWidth];
    for (int i = 0; i < past; ++i) g[i] = Load(b.carry + i * shape.channels + c, lanes);
    g[past] = Vec{};
    if (r < shape.rows) {
      const Vec dy = Load(b.dout + r * shape.dout_stride + c, lanes);
      g[past] = dy * SiluSlope(ConvolveAt(shape, b.params, r, c, b.in, lanes));
    }
    if (own) {
      for (int w = past - reach[r]; w < shape.width; ++w) {
        float* to = b.sums + w * shape.param_stride + c;
        const Vec x = Load(b.in + (r - past + w) * shape.in_stride + c, lanes);
        Store(to, Load(to, lanes) + g[past] * x, lanes);
      }
      float* to = b.sums + shape.width * shape.param_stride + c;
      Store(to, Load(to, lanes) + g[past], lanes);
    }
    if (done >= first) {
      Vec dx = {};
      for (int ahead = 0; ahead <= past; ++ahead) {
        if (done + ahead >= shape.rows || reach[done + ahead] < ahead) break;
        const float* weight = b.params.taps + (past - ahead) * shape.param_stride + c;
        dx = dx + Load(weight, lanes) * g[ahead];
      }
      Put(b.din + done * shape.din_stride + c, dx, lanes);
    }
    for (int i = 0; i < past; ++i) Store(b.carry + i * shape.channels + c, g[i + 1], lanes);
  });
}

template <class T>
void ConvBackward(const ConvShape& shape, const ConvParams& params, int64_t row_begin,
                  int64_t row_end, const T* in, const T* dout, T* din, float* sums, float* carry) {
  const int past = shape.width - 1;
  for (int w = 0; w <= shape.width; ++w) {
    std::memset(sums + w * shape.param_stride, 0, shape.channels * sizeof(float));
  }
  if (past > 0) std::memset(carry, 0, past * shape.channels * sizeof(float));
  const BackwardRows<T> rows = {shape, params, in, dout, din, sums, carry};
  int64_t r = row_begin;
  while (r < row_end) {
    // A tile also writes the rows that leave the carry: they must be of this call and, up to the
    // end of the tile, of the same document.
    const bool whole = shape.width == kFastWidth && r - kPast >= row_begin && r + kTile <= row_end;
    if (whole && SeeAll(params.reach, r - kPast + 1, r + kTile)) {
      BackwardTile(rows, r);
      r += kTile;
    } else {
      BackwardRow(rows, r, true, row_begin);
      ++r;
    }
  }
  for (; r < row_end + past; ++r) BackwardRow(rows, r, false, row_begin);
}

}  // namespace
}  // namespace NIBBLE_ISA

template <class T>
const ConvKernels<T> ConvKernels<T>::NIBBLE_ISA = {ConvForward<T>, ConvBackward<T>};
#if !defined(__AVX512BF16__)
template const ConvKernels<float> ConvKernels<float>::NIBBLE_ISA;
#endif
template const ConvKernels<uint16_t> ConvKernels<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu

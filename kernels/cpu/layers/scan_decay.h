// Kernels of the scan that compute exponents from dt (scan_kernels.h). Included by scan_kernels.cc,
// after vec.h.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_DECAY_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_DECAY_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_vec.h"
#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// ln(1 + z) for 0 <= z <= 1, within a few units in the last place: 2 artanh(t), t = z / (2 + z),
// whose terms t^(2k+1) / (2k + 1) fall below half a unit after t^15 as t <= 1/3.
NIBBLE_INLINE Vec Log1pOfUnit(Vec z) {
  const Vec t = z / (z + 2.0f);
  const Vec t2 = t * t;
  Vec p = t2 * (1.0f / 15) + 1.0f / 13;
  p = p * t2 + 1.0f / 11;
  p = p * t2 + 1.0f / 9;
  p = p * t2 + 1.0f / 7;
  p = p * t2 + 1.0f / 5;
  p = p * t2 + 1.0f / 3;
  return (t + t) * (p * t2) + (t + t);
}

// ln(1 + e^x) without overflow, and with the relative accuracy of e^x far below zero.
NIBBLE_INLINE Vec Softplus(Vec x) { return Max(x, Vec{}) + Log1pOfUnit(Exp(-Abs(x))); }

template <class T>
void Decays(TokenBlock<const T> dt, int tokens, int padded, int heads, const float* dt_bias,
            const double* rate, float* out) {
  ForVecs(heads, [&](int64_t h, auto lanes) NIBBLE_INLINE_LAMBDA {
    const int count = static_cast<int>(std::min<int64_t>(kVec, heads - h));
    const Vec bias = Load(dt_bias + h, lanes);
    // Summed over a chunk in float64: the exponents are differences of these sums.
    double sum[kVec] = {};
    float delta[kVec], slope[kVec];
    for (int i = 0; i < padded; ++i) {
      if (i < tokens) {
        const Vec raw = Load(dt.data + i * dt.stride + h, lanes) + bias;
        Store(delta, Softplus(raw));
        Store(slope, Sigmoid(raw));
      } else {
        Store(delta, Vec{});
        Store(slope, Vec{});
      }
      float* to = out + h * ScanDecay::kArrays * padded + i;
      for (int lane = 0; lane < count; ++lane, to += ScanDecay::kArrays * padded) {
        sum[lane] += static_cast<double>(delta[lane]) * rate[h + lane];
        const float high = static_cast<float>(sum[lane]);
        to[0] = delta[lane];
        to[padded] = high;
        to[2 * padded] = static_cast<float>(sum[lane] - high);
        to[3 * padded] = slope[lane];
      }
    }
  });
}

// s_i − s_from for the sixteen tokens at i.
NIBBLE_INLINE Vec SumSince(const ScanDecay& decay, int64_t i, int64_t from) {
  return (Load(decay.sum + i) - decay.sum[from]) + (Load(decay.sum_low + i) - decay.sum_low[from]);
}

// The last token of the sixteen at j.
NIBBLE_INLINE int64_t SplitOf(int64_t j, int64_t tokens) {
  return std::min<int64_t>(j + kVec, tokens) - 1;
}

static void Edges(const ScanDecay& decay, int tokens, int padded, int entering, int last_doc,
                  const ScanEdges& out) {
  for (int64_t i = 0; i < padded; i += kVec) {
    const Vec lanes = LanesFrom(i);
    const Vec since = Load(decay.sum + i) + Load(decay.sum_low + i);
    Store(out.enter + i, Select(lanes < static_cast<float>(entering), Exp(since), Vec{}));
    const auto leaves =
        (lanes >= static_cast<float>(last_doc)) & (lanes < static_cast<float>(tokens));
    const Vec leave = Select(leaves, Exp(-SumSince(decay, i, tokens - 1)), Vec{});
    Store(out.leave + i, leave);
    const Vec delta = Load(decay.delta + i);
    Store(out.leave_delta + i, Select(leaves, leave * delta, Vec{}));
    const Vec until = Exp(-SumSince(decay, i, SplitOf(i, tokens)));
    Store(out.until + i, until);
    Store(out.until_delta + i, until * delta);
  }
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_DECAY_H_

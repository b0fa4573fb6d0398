// Kernels of the scan over pairs of tokens (scan_kernels.h). Included by scan_kernels.cc,
// after vec.h.
//
// Pairs are processed in blocks of sixteen by sixteen. In a block below the diagonal, exp(s_i −
// s_j) is exp(s_i − s_r) · exp(s_r − s_j) with r the last token of j's block: neither exponent is
// positive, and if a factor underflows so does the product. This takes one exp per vector and
// block, and on the diagonal one per vector and row.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_MIX_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_MIX_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/scan_decay.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_vec.h"
#include "kernels/cpu/layers/vec.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

template <class T>
void Mix(const ScanMix& mix, int begin, const float* scores, int64_t stride, T* packed) {
  const ScanDecay& decay = mix.decay;
  const int64_t end = std::min<int64_t>(begin + kScanStrip, PaddedPanelDepth(mix.tokens));
  for (int64_t i = begin; i < std::min<int64_t>(end, mix.tokens); i += kVec) {
    const float* from = scores + (i - begin) * stride;
    for (int64_t j = 0; j < end; j += kVec) {
      PackedBlock<T> block(packed, i - begin, j, mix.tokens);
      if (j > i || j + kVec <= mix.first[i]) {
        block.Zero();
      } else if (j < i) {
        alignas(64) float since[kVec];
        Store(since, Exp(SumSince(decay, i, SplitOf(j, mix.tokens))));
        const Vec until = Load(mix.edges.until_delta + j);
        const bool all_seen = mix.first[i + kVec - 1] <= j;
#pragma GCC unroll 4
        for (int64_t r = 0; r < kVec; ++r) {
          Vec v = until * since[r] * Load(from + r * stride + j);
          if (!all_seen) {
            v = Select(LanesFrom(j) >= static_cast<float>(mix.first[i + r]), v, Vec{});
          }
          block.Row(r, v);
        }
        block.Finish();
      } else {
        const Vec lanes = LanesFrom(i);
        const Vec delta = Load(decay.delta + i);
#pragma GCC unroll 2
        for (int64_t r = 0; r < kVec; ++r) {
          const auto seen = (lanes <= static_cast<float>(i + r)) &
                            (lanes >= static_cast<float>(mix.first[i + r]));
          const Vec m = Exp(-SumSince(decay, i, i + r)) * delta;
          block.Row(r, Select(seen, m * Load(from + r * stride + i), Vec{}));
        }
        block.Finish();
      }
    }
  }
}

// inside_k = Σ_{i≥k>j} W_ji is accumulated while iterating over rows j: for k in the current block
// of rows, it is the sum of the columns i >= k of earlier rows, plus the rows before k in the
// block.
template <class T>
void MixBackward(const ScanMix& mix, int begin, const float* scores, const float* products,
                 int64_t stride, T* packed, float* pair_sums, float* inside, float* columns,
                 const ScanAhead& ahead) {
  Asker asker(ahead);
  const ScanDecay& decay = mix.decay;
  const int64_t last = std::min<int64_t>(begin + kScanStrip, mix.tokens);
  for (int64_t j = begin; j < last; j += kVec) {
    const int64_t split = SplitOf(j, mix.tokens), seen_end = mix.end[split];
    const float *until = mix.edges.until + j, *delta = decay.delta + j;
    alignas(64) float rows[kVec][kVec] = {};
    Vec right = {};  // of earlier rows, in the columns of later blocks
    for (int64_t i = begin; i < PaddedPanelDepth(mix.tokens); i += kVec) {
      if (i == j) continue;
      PackedBlock<T> block(packed, j - begin, i, mix.tokens);
      if (i < j || i >= seen_end) {
        block.Zero();
        continue;
      }
      const Vec since = Exp(SumSince(decay, i, split));
      const bool all_seen = mix.end[j] >= i + kVec;
      Vec column = Load(columns + i);
      right = right + column;
#pragma GCC unroll 4
      for (int64_t r = 0; r < kVec; ++r) {
        asker.NextLine();
        const int64_t at = (j - begin + r) * stride + i;
        const Vec m = since * until[r];
        const Vec score = Load(scores + at);
        Vec mixed = m * score;
        Vec pair = m * delta[r] * Load(products + at);
        Vec w = pair * score;
        if (!all_seen) {
          const auto seen = LanesFrom(i) < static_cast<float>(mix.end[j + r]);
          mixed = Select(seen, mixed, Vec{});
          pair = Select(seen, pair, Vec{});
          w = Select(seen, w, Vec{});
        }
        block.Row(r, mixed);
        Store(pair_sums + at, Load(pair_sums + at) + pair);
        Store(rows[r], Load(rows[r]) + w);
        column = column + w;
      }
      block.Finish();
      Store(columns + i, column);
    }

    PackedBlock<T> block(packed, j - begin, j, mix.tokens);
    alignas(64) float sums[kVec][kVec];
    Vec column = Load(columns + j);
    const Vec lanes = LanesFrom(j);
    for (int64_t r = 0; r < kVec; ++r) {
      asker.NextLine();
      const int64_t at = (j - begin + r) * stride + j;
      const auto later = lanes >= static_cast<float>(j + r);
      Store(sums[r], Select(later, column, Vec{}) + right);
      const auto seen = later & (lanes < static_cast<float>(mix.end[j + r]));
      const Vec m = Select(seen, Exp(SumSince(decay, j, j + r)), Vec{});
      const Vec score = Load(scores + at);
      const Vec pair = Select(seen, m * delta[r] * Load(products + at), Vec{});
      block.Row(r, Select(seen, m * score, Vec{}));
      Store(pair_sums + at, Load(pair_sums + at) + pair);
      column = column + Select(seen, pair * score, Vec{});
      right = right + Load(rows[r]);
    }
    block.Finish();
    Store(inside + j, SumRows(sums));
  }
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_MIX_H_

#include "kernels/cpu/layers/decode_attention_kernels.h"

#include <cmath>
#include <cstdint>

#include "kernels/cpu/layers/vec.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// Query heads that share one pass over keys and values.
constexpr int kTogether = 4;

template <int kHeads, class T>
NIBBLE_INLINE void Scores(const DecodeBlock<T>& block, const float* q, float* scores) {
  for (int64_t j = 0; j < block.keys; ++j) {
    const T* k = block.k + j * block.head_dim;
    Vec dot[kHeads] = {};
    ForVecs(block.head_dim, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      const Vec key = Load(k + i, lanes);
      for (int h = 0; h < kHeads; ++h) {
        dot[h] = Load(q + h * block.head_dim + i, lanes) * key + dot[h];
      }
    });
    for (int h = 0; h < kHeads; ++h) scores[h * kDecodeKeys + j] = Sum(dot[h]) * block.scale;
  }
}

// Scores become exp(s − top).
NIBBLE_INLINE void DecodeSoftmax(float* scores, int64_t keys, float* top, float* sum) {
  float largest = scores[0];
  for (int64_t j = 1; j < keys; ++j) largest = scores[j] > largest ? scores[j] : largest;
  Vec total = {};
  ForVecs(keys, [&](int64_t j, auto lanes) NIBBLE_INLINE_LAMBDA {
    const Vec p = Present(Exp(Load(scores + j, lanes) - largest), lanes);
    total = total + p;
    Store(scores + j, p, lanes);
  });
  *top = largest;
  *sum = Sum(total);
}

template <int kHeads, class T>
NIBBLE_INLINE void Values(const DecodeBlock<T>& block, const float* scores, float* out) {
  ForVecs(block.head_dim, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Vec sum[kHeads] = {};
    for (int64_t j = 0; j < block.keys; ++j) {
      const Vec v = Load(block.v + j * block.head_dim + i, lanes);
      for (int h = 0; h < kHeads; ++h) sum[h] = scores[h * kDecodeKeys + j] * v + sum[h];
    }
    for (int h = 0; h < kHeads; ++h) Store(out + h * block.head_dim + i, sum[h], lanes);
  });
}

template <int kHeads, class T>
void Heads(const DecodeBlock<T>& block, int first, float* q, float* scores) {
  const T* from = block.q + int64_t{first} * block.head_dim;
  ForVecs(kHeads * block.head_dim, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Store(q + i, Load(from + i, lanes), lanes);
  });
  Scores<kHeads>(block, q, scores);
  for (int h = 0; h < kHeads; ++h) {
    DecodeSoftmax(scores + h * kDecodeKeys, block.keys, block.top + first + h,
                  block.sum + first + h);
  }
  Values<kHeads>(block, scores, block.out + int64_t{first} * block.head_dim);
}

template <class T>
void DecodeKeys(const DecodeBlock<T>& block) {
  float* q = block.room;
  float* scores = block.room + int64_t{block.heads} * block.head_dim;
  int first = 0;
  for (; first + kTogether <= block.heads; first += kTogether) {
    Heads<kTogether>(block, first, q, scores);
  }
  for (; first < block.heads; ++first) Heads<1>(block, first, q, scores);
}

template <class T>
void FinishDecode(const DecodeFinish<T>& finish) {
  float top = finish.top[0];
  for (int64_t b = 1; b < finish.blocks; ++b) {
    const float other = finish.top[b * finish.top_stride];
    top = other > top ? other : top;
  }
  float total = 0;
  for (int64_t b = 0; b < finish.blocks; ++b) {
    total += finish.sum[b * finish.top_stride] * std::exp(finish.top[b * finish.top_stride] - top);
  }
  ForVecs(finish.head_dim, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Vec sum = {};
    for (int64_t b = 0; b < finish.blocks; ++b) {
      const float factor = std::exp(finish.top[b * finish.top_stride] - top);
      sum = Load(finish.out + b * finish.out_stride + i, lanes) * factor + sum;
    }
    Store(finish.to + i, sum / total, lanes);
  });
}

}  // namespace
}  // namespace NIBBLE_ISA

template <class T>
const DecodeAttentionKernels<T> DecodeAttentionKernels<T>::NIBBLE_ISA = {DecodeKeys<T>,
                                                                         FinishDecode<T>};
template const DecodeAttentionKernels<float> DecodeAttentionKernels<float>::NIBBLE_ISA;
template const DecodeAttentionKernels<uint16_t> DecodeAttentionKernels<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu

#include "kernels/cpu/layers/token_kernels.h"

#include <cfloat>
#include <cmath>

#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

template <class From, class To>
void Embed(const void* entry, const void* position, int64_t d, void* out) {
  const From* from = static_cast<const From*>(entry);
  const From* at = static_cast<const From*>(position);
  To* to = static_cast<To*>(out);
  ForVecs(d, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Vec v = Load(from + i, lanes);
    if (at != nullptr) v = Rounded<To>(v) + Rounded<To>(Load(at + i, lanes));
    Store(to + i, v, lanes);
  });
}

// Vectors whose sums stay in registers.
constexpr int kSums = kRegister / 8;

template <class T>
void AddRows(const ConstMatrix& from, const int32_t* rows, int64_t count, int64_t begin,
             int64_t end, float* to) {
  int64_t j = begin;
  for (; j + kSums * kVec <= end; j += kSums * kVec) {
    Vec sums[kSums] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* row = Row<T>(from, rows[i]) + j;
#pragma GCC unroll 8
      for (int s = 0; s < kSums; ++s) sums[s] += Load(row + s * kVec);
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSums; ++s) {
      float* out = to + j + s * kVec;
      Store(out, Load(out) + sums[s]);
    }
  }
  ForVecs(end - j, [&](int64_t c, auto lanes) NIBBLE_INLINE_LAMBDA {
    Vec sum = {};
    for (int64_t i = 0; i < count; ++i) sum += Load(Row<T>(from, rows[i]) + j + c, lanes);
    Store(to + j + c, Load(to + j + c, lanes) + sum, lanes);
  });
}

// Few enough logits to stay in the first-level cache until they are read again.
constexpr int64_t kChunk = 1024;

template <class From, class To>
float CrossEntropyRow(const void* logits, int64_t vocab, int32_t target, float scale,
                      void* dlogits) {
  const From* x = static_cast<const From*>(logits);
  // `total`: Σ e^(x − max) over the logits read so far, `max` the largest of them. A NaN does not
  // become `max` but makes the sum NaN, as an infinity does, from which it is subtracted.
  float max = -FLT_MAX;
  double total = 0;
  for (int64_t begin = 0; begin < vocab; begin += kChunk) {
    const int64_t n = vocab - begin < kChunk ? vocab - begin : kChunk;
    const From* chunk = x + begin;
    Vec largest = Splat(max);
    ForVecs(n, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      largest = Max(PresentOr(Load(chunk + i, lanes), -FLT_MAX, lanes), largest);
    });
    const float chunk_max = Largest(largest);
    if (chunk_max > max) {
      total *= std::exp(static_cast<double>(max) - static_cast<double>(chunk_max));
      max = chunk_max;
    }
    Vec sum = {};
    ForVecs(n, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
      sum += Present(Exp(Load(chunk + i, lanes) - max), lanes);
    });
    total += static_cast<double>(Sum(sum));
  }
  const double of_target = static_cast<double>(Sum(LoadPart(x + target, 1))) - max;
  const float loss = static_cast<float>(std::log(total) - of_target);
  if (dlogits == nullptr) return loss;

  To* dx = static_cast<To*>(dlogits);
  const float factor = static_cast<float>(static_cast<double>(scale) / total);
  ForVecs(vocab, [&](int64_t i, auto lanes) NIBBLE_INLINE_LAMBDA {
    Store(dx + i, Exp(Load(x + i, lanes) - max) * factor, lanes);
  });
  const double probability = std::exp(of_target) / total;
  StorePart(dx + target, Splat(static_cast<float>(scale * (probability - 1))), 1);
  return loss;
}

}  // namespace
}  // namespace NIBBLE_ISA

const TokenKernels TokenKernels::NIBBLE_ISA = {
    {{Embed<float, float>, Embed<float, uint16_t>},
     {Embed<uint16_t, float>, Embed<uint16_t, uint16_t>}},
    {AddRows<float>, AddRows<uint16_t>},
    {{CrossEntropyRow<float, float>, CrossEntropyRow<float, uint16_t>},
     {CrossEntropyRow<uint16_t, float>, CrossEntropyRow<uint16_t, uint16_t>}},
};

}  // namespace nibble::cpu

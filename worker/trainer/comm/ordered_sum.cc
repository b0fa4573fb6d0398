#include "worker/trainer/comm/ordered_sum.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace nibble {
namespace {

constexpr int64_t kBlock = 1024;  // elements: 4 KiB, in the first-level cache beside one input

// Exactly kBlock or fewer elements; the fixed trip count of whole blocks lets the compiler use
// vectors without a check of the count.
void AddTo(float* sum, const float* x, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sum[i + j] += x[i + j];
  }
  for (; i < count; ++i) sum[i] += x[i];
}

template <class T>
T Add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

// The first NaN in rank order stays; of equal values (0 and -0) the first.
template <class T>
T Max(T a, T b) {
  if (a != a) return a;
  return b > a || b != b ? b : a;
}

template <class T>
void Reduce(const T* in, T* out, int ranks, int64_t count, Reduction reduction) {
  std::copy_n(in, count, out);
  for (int r = 1; r < ranks; ++r) {
    const T* x = in + r * count;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = reduction == Reduction::kSum ? Add(out[i], x[i]) : Max(out[i], x[i]);
    }
  }
}

}  // namespace

void SumInRankOrder(std::span<const float* const> in, float* out, int64_t count) {
  alignas(64) float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::memcpy(sum, in[0] + begin, size * sizeof(float));
    for (size_t r = 1; r < in.size(); ++r) AddTo(sum, in[r] + begin, size);
    std::memcpy(out + begin, sum, size * sizeof(float));
  }
}

void ReduceInRankOrder(const void* in, void* out, int ranks, int64_t count, ReduceElement element,
                       Reduction reduction) {
  switch (element) {
    case ReduceElement::kFloat32:
      return Reduce(static_cast<const float*>(in), static_cast<float*>(out), ranks, count,
                    reduction);
    case ReduceElement::kFloat64:
      return Reduce(static_cast<const double*>(in), static_cast<double*>(out), ranks, count,
                    reduction);
    case ReduceElement::kInt64:
      return Reduce(static_cast<const int64_t*>(in), static_cast<int64_t*>(out), ranks, count,
                    reduction);
  }
}

}  // namespace nibble

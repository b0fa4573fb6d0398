#include "kernels/gemm/tile_loops.h"

#include <cstring>

#include "kernels/formats/bfloat16.h"
#include "kernels/formats/lanes.h"

namespace nibble::cpu {
namespace {

template <int kN>
struct Lanes {
  using F = typename LaneVector<kN>::F;
  using U = typename LaneVector<kN>::U;
  typedef uint16_t U16 __attribute__((vector_size(2 * kN)));

  template <class V, class T>
  NIBBLE_LANES static V Load(const T* from) {
    V v;
    std::memcpy(&v, from, sizeof(v));
    return v;
  }
  template <class V, class T>
  NIBBLE_LANES static void Store(V v, T* to) {
    std::memcpy(to, &v, sizeof(v));
  }
  NIBBLE_LANES static F Widen(U16 x) { return FromBits<F>(__builtin_convertvector(x, U) << 16); }
  NIBBLE_LANES static U16 Narrow(F x) {
    return __builtin_convertvector(RoundToBf16Bits<F>(x) >> 16, U16);
  }

  NIBBLE_LANES static void WidenRow(const uint16_t* x, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + kN <= count; i += kN) Store(Widen(Load<U16>(x + i)), out + i);
    for (; i < count; ++i) out[i] = DecodeBf16(x[i]);
  }

  NIBBLE_LANES static void AddScaled(const float* partial, float row_scale, const float* col_scale,
                                     int64_t count, bool first, float* acc) {
    int64_t j = 0;
    for (; j + kN <= count; j += kN) {
      F sum = (Load<F>(partial + j) * row_scale) * Load<F>(col_scale + j);
      if (!first) sum = Load<F>(acc + j) + sum;
      Store(sum, acc + j);
    }
    for (; j < count; ++j) {
      const float sum = (partial[j] * row_scale) * col_scale[j];
      acc[j] = first ? sum : acc[j] + sum;
    }
  }

  template <class C>
  NIBBLE_LANES static void Finish(const float* acc, float alpha, float row_scale,
                                  const float* col_scale, int64_t count, bool accumulate, C* c) {
    constexpr bool kBf16 = sizeof(C) == 2;
    int64_t j = 0;
    for (; j + kN <= count; j += kN) {
      F v = ((Load<F>(acc + j) * alpha) * row_scale) * Load<F>(col_scale + j);
      if constexpr (kBf16) {
        if (accumulate) v = v + Widen(Load<U16>(c + j));
        Store(Narrow(v), c + j);
      } else {
        if (accumulate) v = v + Load<F>(c + j);
        Store(v, c + j);
      }
    }
    for (; j < count; ++j) {
      float v = ((acc[j] * alpha) * row_scale) * col_scale[j];
      if constexpr (kBf16) {
        if (accumulate) v = v + DecodeBf16(c[j]);
        c[j] = EncodeBf16(v);
      } else {
        c[j] = accumulate ? v + c[j] : v;
      }
    }
  }
};

#define NIBBLE_TILE_LOOPS(name, lanes, target)                                                    \
  target void Widen##name(const uint16_t* x, int64_t count, float* out) {                         \
    Lanes<lanes>::WidenRow(x, count, out);                                                        \
  }                                                                                               \
  target void AddScaled##name(const float* partial, float row_scale, const float* col_scale,      \
                              int64_t count, bool first, float* acc) {                            \
    Lanes<lanes>::AddScaled(partial, row_scale, col_scale, count, first, acc);                    \
  }                                                                                               \
  target void FinishF32##name(const float* acc, float alpha, float row_scale,                     \
                              const float* col_scale, int64_t count, bool accumulate, float* c) { \
    Lanes<lanes>::Finish(acc, alpha, row_scale, col_scale, count, accumulate, c);                 \
  }                                                                                               \
  target void FinishBf16##name(const float* acc, float alpha, float row_scale,                    \
                               const float* col_scale, int64_t count, bool accumulate,            \
                               uint16_t* c) {                                                     \
    Lanes<lanes>::Finish(acc, alpha, row_scale, col_scale, count, accumulate, c);                 \
  }                                                                                               \
  constexpr TileLoops k##name = {Widen##name, AddScaled##name, FinishF32##name, FinishBf16##name};

NIBBLE_TILE_LOOPS(Plain, 4, )
#if defined(__x86_64__)
NIBBLE_TILE_LOOPS(Avx2, 8, __attribute__((target("avx2"))))
NIBBLE_TILE_LOOPS(Avx512, 16,
                  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,"
                                        "prefer-vector-width=512"))))
#endif
#undef NIBBLE_TILE_LOOPS

}  // namespace

int TileLoopsCount() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return 3;
  }
  if (__builtin_cpu_supports("avx2")) return 2;
#endif
  return 1;
}

const TileLoops& TileLoopsAt(int index) {
#if defined(__x86_64__)
  if (index == 2) return kAvx512;
  if (index == 1) return kAvx2;
#endif
  return kPlain;
}

const TileLoops& BestTileLoops() {
  static const TileLoops& best = TileLoopsAt(TileLoopsCount() - 1);
  return best;
}

}  // namespace nibble::cpu

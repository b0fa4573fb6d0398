// The vector types of vec.h, which includes this: sixteen lanes of FP32 (Vec), int32 (VecI), uint32
// (VecU). With AVX-512 they are the compiler's own vectors; elsewhere they are pairs of narrower
// ones, because GCC keeps vectors wider than a register in memory and compares them lane by lane.
//
// Only operations that both kinds support may be used: arithmetic, shifts, bit operations and
// comparisons with vectors or scalars, and the functions below. Not `mask ? a : b` but Select; not
// __builtin_convertvector or __builtin_bit_cast but ToInt, ToFloat, Bits and FromBits. A comparison
// yields a VecI of all ones or zeros per lane.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_VEC_LANES_H_
#define NIBBLE_KERNELS_CPU_LAYERS_VEC_LANES_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#define NIBBLE_INLINE inline __attribute__((always_inline))

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

inline constexpr int kVec = 16;

// `Base` lanes in registers of kRegister bytes.
#if defined(__AVX512F__)
inline constexpr int kRegister = 64;
#elif defined(__AVX__)
inline constexpr int kRegister = 32;
#else
inline constexpr int kRegister = 16;
#endif
typedef float RegF __attribute__((vector_size(kRegister)));
typedef int32_t RegI __attribute__((vector_size(kRegister)));
typedef uint32_t RegU __attribute__((vector_size(kRegister)));
inline constexpr int kRegLanes = kRegister / 4;

template <class H>
struct Pair;
template <class V>
struct LanesOf {
  using Element = std::remove_cvref_t<decltype(V{}[0])>;
  static constexpr int kCount = sizeof(V) / sizeof(Element);
};
template <class H>
struct LanesOf<Pair<H>> {
  using Element = typename LanesOf<H>::Element;
  static constexpr int kCount = 2 * LanesOf<H>::kCount;
};

template <class H>
struct Pair {
  using Element = typename LanesOf<H>::Element;
  using Mask = Pair<decltype(H{} == H{})>;
  H low, high;

#define NIBBLE_PAIR_OPERATOR(op, Result)                                                           \
  friend NIBBLE_INLINE Result operator op(Pair a, Pair b) {                                        \
    return {a.low op b.low, a.high op b.high};                                                     \
  }                                                                                                \
  friend NIBBLE_INLINE Result operator op(Pair a, Element b) { return {a.low op b, a.high op b}; } \
  friend NIBBLE_INLINE Result operator op(Element a, Pair b) { return {a op b.low, a op b.high}; }
#define NIBBLE_PAIR_ASSIGNMENT(op)                                          \
  NIBBLE_INLINE Pair& operator op##=(Pair b) { return *this = *this op b; } \
  NIBBLE_INLINE Pair& operator op##=(Element b) { return *this = *this op b; }
#define NIBBLE_PAIR_ARITHMETIC(op) \
  NIBBLE_PAIR_OPERATOR(op, Pair)   \
  NIBBLE_PAIR_ASSIGNMENT(op)

  NIBBLE_PAIR_ARITHMETIC(+)
  NIBBLE_PAIR_ARITHMETIC(-)
  NIBBLE_PAIR_ARITHMETIC(*)
  NIBBLE_PAIR_ARITHMETIC(/)
  NIBBLE_PAIR_ARITHMETIC(&)
  NIBBLE_PAIR_ARITHMETIC(|)
  NIBBLE_PAIR_ARITHMETIC(^)
  NIBBLE_PAIR_OPERATOR(<, Mask)
  NIBBLE_PAIR_OPERATOR(<=, Mask)
  NIBBLE_PAIR_OPERATOR(>, Mask)
  NIBBLE_PAIR_OPERATOR(>=, Mask)
  NIBBLE_PAIR_OPERATOR(==, Mask)
  NIBBLE_PAIR_OPERATOR(!=, Mask)
#undef NIBBLE_PAIR_ARITHMETIC
#undef NIBBLE_PAIR_ASSIGNMENT
#undef NIBBLE_PAIR_OPERATOR

  friend NIBBLE_INLINE Pair operator-(Pair a) { return {-a.low, -a.high}; }
  friend NIBBLE_INLINE Pair operator~(Pair a) { return {~a.low, ~a.high}; }
  friend NIBBLE_INLINE Pair operator<<(Pair a, int n) { return {a.low << n, a.high << n}; }
  friend NIBBLE_INLINE Pair operator>>(Pair a, int n) { return {a.low >> n, a.high >> n}; }
};

#if defined(__AVX512F__)
typedef RegF Vec;
typedef RegI VecI;
typedef RegU VecU;
#elif defined(__AVX__)
typedef Pair<RegF> Vec;
typedef Pair<RegI> VecI;
typedef Pair<RegU> VecU;
#else
typedef Pair<Pair<RegF>> Vec;
typedef Pair<Pair<RegI>> VecI;
typedef Pair<Pair<RegU>> VecU;
#endif

// a in lanes where the mask is all ones, else b.
template <class M, class V>
NIBBLE_INLINE V Select(M mask, V a, V b) {
  return mask ? a : b;
}
template <class M, class H>
NIBBLE_INLINE Pair<H> Select(Pair<M> mask, Pair<H> a, Pair<H> b) {
  return {Select(mask.low, a.low, b.low), Select(mask.high, a.high, b.high)};
}

// A lane's bits, unchanged.
NIBBLE_INLINE RegU Bits(RegF v) { return reinterpret_cast<RegU>(v); }
NIBBLE_INLINE RegU Bits(RegI v) { return reinterpret_cast<RegU>(v); }
template <class H>
NIBBLE_INLINE auto Bits(Pair<H> v) {
  return Pair<decltype(Bits(v.low))>{Bits(v.low), Bits(v.high)};
}
NIBBLE_INLINE RegF FromBits(RegU v) { return reinterpret_cast<RegF>(v); }
NIBBLE_INLINE RegF FromBits(RegI v) { return reinterpret_cast<RegF>(v); }
template <class H>
NIBBLE_INLINE auto FromBits(Pair<H> v) {
  return Pair<decltype(FromBits(v.low))>{FromBits(v.low), FromBits(v.high)};
}

// Truncates; the value must fit an int32.
NIBBLE_INLINE RegI ToInt(RegF v) { return __builtin_convertvector(v, RegI); }
template <class H>
NIBBLE_INLINE auto ToInt(Pair<H> v) {
  return Pair<decltype(ToInt(v.low))>{ToInt(v.low), ToInt(v.high)};
}
NIBBLE_INLINE RegF ToFloat(RegI v) { return __builtin_convertvector(v, RegF); }
template <class H>
NIBBLE_INLINE auto ToFloat(Pair<H> v) {
  return Pair<decltype(ToFloat(v.low))>{ToFloat(v.low), ToFloat(v.high)};
}

NIBBLE_INLINE RegF SqrtOf(RegF v) {
#if defined(__AVX512F__)
  return reinterpret_cast<RegF>(_mm512_sqrt_ps(reinterpret_cast<__m512>(v)));
#elif defined(__AVX__)
  return reinterpret_cast<RegF>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)));
#else
  return reinterpret_cast<RegF>(_mm_sqrt_ps(reinterpret_cast<__m128>(v)));
#endif
}
template <class H>
NIBBLE_INLINE Pair<H> SqrtOf(Pair<H> v) {
  return {SqrtOf(v.low), SqrtOf(v.high)};
}

// Any alignment.
NIBBLE_INLINE void LoadTo(RegF& v, const float* p) { std::memcpy(&v, p, sizeof(v)); }
NIBBLE_INLINE void LoadTo(RegU& v, const uint32_t* p) { std::memcpy(&v, p, sizeof(v)); }
// Widened: u16 to u32.
NIBBLE_INLINE void LoadTo(RegU& v, const uint16_t* p) {
#if defined(__AVX512F__)
  v = reinterpret_cast<RegU>(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__)
  v = reinterpret_cast<RegU>(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  const __m128i narrow = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  v = reinterpret_cast<RegU>(_mm_unpacklo_epi16(narrow, _mm_setzero_si128()));
#endif
}
template <class H, class T>
NIBBLE_INLINE void LoadTo(Pair<H>& v, const T* p) {
  LoadTo(v.low, p);
  LoadTo(v.high, p + LanesOf<H>::kCount);
}
NIBBLE_INLINE void StoreFrom(RegF v, float* p) { std::memcpy(p, &v, sizeof(v)); }
NIBBLE_INLINE void StoreFrom(RegU v, uint32_t* p) { std::memcpy(p, &v, sizeof(v)); }
template <class H, class T>
NIBBLE_INLINE void StoreFrom(Pair<H> v, T* p) {
  StoreFrom(v.low, p);
  StoreFrom(v.high, p + LanesOf<H>::kCount);
}
// Narrowed to u16; the upper halves of the lanes are zero.
#if defined(__AVX512F__)
NIBBLE_INLINE void StoreFrom(RegU v, uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(v)));
}
#elif defined(__AVX2__)
NIBBLE_INLINE void StoreFrom(Pair<RegU> v, uint16_t* p) {
  const __m256i mixed =
      _mm256_packus_epi32(reinterpret_cast<__m256i>(v.low), reinterpret_cast<__m256i>(v.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}
#else
NIBBLE_INLINE void StoreFrom(Pair<RegU> v, uint16_t* p) {
  // SSE2 packs with signed saturation only: sign-extended, the low halves pass it unchanged.
  const auto extend = [](RegU half) {
    return _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(half), 16), 16);
  };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(extend(v.low), extend(v.high)));
}
#endif

// In a fixed order, the same in every set: halves, quarters, ….
typedef float Four __attribute__((vector_size(16)));
NIBBLE_INLINE float SumOf(Four v) {
  v = v + __builtin_shufflevector(v, v, 2, 3, 0, 1);
  return v[0] + v[1];
}
NIBBLE_INLINE float LargestOf(Four v) {
  const Four other = __builtin_shufflevector(v, v, 2, 3, 0, 1);
  v = v > other ? v : other;
  return v[0] > v[1] ? v[0] : v[1];
}
#if defined(__AVX__)
typedef float Eight __attribute__((vector_size(32)));
NIBBLE_INLINE float SumOf(Eight v) {
  const __m256 x = reinterpret_cast<__m256>(v);
  return SumOf(reinterpret_cast<Four>(_mm256_castps256_ps128(x)) +
               reinterpret_cast<Four>(_mm256_extractf128_ps(x, 1)));
}
NIBBLE_INLINE float LargestOf(Eight v) {
  const __m256 x = reinterpret_cast<__m256>(v);
  const Four low = reinterpret_cast<Four>(_mm256_castps256_ps128(x));
  const Four high = reinterpret_cast<Four>(_mm256_extractf128_ps(x, 1));
  return LargestOf(low > high ? low : high);
}
#endif
#if defined(__AVX512F__)
NIBBLE_INLINE Pair<Eight> Halves(Vec v) {
  const __m512 x = reinterpret_cast<__m512>(v);
  return {reinterpret_cast<Eight>(_mm512_castps512_ps256(x)),
          reinterpret_cast<Eight>(_mm512_extractf32x8_ps(x, 1))};
}
#else
NIBBLE_INLINE Vec Halves(Vec v) { return v; }
#endif
template <class H>
NIBBLE_INLINE float SumOf(Pair<H> v) {
  return SumOf(v.low + v.high);
}
template <class H>
NIBBLE_INLINE float LargestOf(Pair<H> v) {
  return LargestOf(Select(v.low > v.high, v.low, v.high));
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_VEC_LANES_H_

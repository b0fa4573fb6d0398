// Lane-generic arithmetic: every formula in this room is a template over F, where F is `float` or a
// vector of floats (GCC vector extension), so that the scalar oracle, the CPU's vector paths and
// the CUDA kernels share one source. CUDA instantiates it only with `float`.
//
// Everything here is forced inline: the CPU paths are compiled once per instruction set, and an
// out-of-line copy could be merged by the linker across them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_LANES_H_
#define NIBBLE_KERNELS_FORMATS_LANES_H_

#include <cstdint>

#if defined(__AVX2__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#if defined(__CUDACC__)
#define NIBBLE_LANES __host__ __device__ __forceinline__
#else
#define NIBBLE_LANES inline __attribute__((always_inline))
#endif

// Unrolls the loop that follows; `n` is its trip count. nvcc knows only its own pragma, and its
// host pass forwards pragmas to a compiler that does not know it.
#define NIBBLE_PRAGMA(text) _Pragma(#text)
#if defined(__CUDA_ARCH__)
#define NIBBLE_UNROLL(n) NIBBLE_PRAGMA(unroll)
#elif defined(__CUDACC__)
#define NIBBLE_UNROLL(n)
#else
#define NIBBLE_UNROLL(n) NIBBLE_PRAGMA(GCC unroll n)
#endif

namespace nibble {

// U and I are the unsigned and signed integers of F's shape.
template <class F>
struct LaneTraits;

template <>
struct LaneTraits<float> {
  using U = uint32_t;
  using I = int32_t;
  static constexpr int kLanes = 1;
};

#if !defined(__CUDACC__)
template <int kN>
struct LaneVector {
  typedef float F __attribute__((vector_size(4 * kN)));
  typedef uint32_t U __attribute__((vector_size(4 * kN)));
  typedef int32_t I __attribute__((vector_size(4 * kN)));
  static constexpr int kLanes = kN;
};
template <>
struct LaneTraits<LaneVector<4>::F> : LaneVector<4> {};
template <>
struct LaneTraits<LaneVector<8>::F> : LaneVector<8> {};
template <>
struct LaneTraits<LaneVector<16>::F> : LaneVector<16> {};
#endif

template <class F>
using LaneU = typename LaneTraits<F>::U;
template <class F>
using LaneI = typename LaneTraits<F>::I;

template <class To, class From>
NIBBLE_LANES constexpr To BitCast(From from) {
  return __builtin_bit_cast(To, from);
}

template <class F>
NIBBLE_LANES LaneU<F> BitsOf(F x) {
  return BitCast<LaneU<F>>(x);
}
template <class F>
NIBBLE_LANES F FromBits(LaneU<F> bits) {
  return BitCast<F>(bits);
}

// Non-negative floats have the order of their bits, and NaN sorts above infinity: integer minimum
// and maximum have a defined result for NaN, the float ones do not.
template <class U>
NIBBLE_LANES U MinBits(U a, U b) {
  return a < b ? a : b;
}
template <class U>
NIBBLE_LANES U MaxBits(U a, U b) {
  return a > b ? a : b;
}

// 1 where a comparison is true: its result is a bool, or lanes of all ones or zeros.
template <class U, class Condition>
NIBBLE_LANES U OneWhere(Condition condition) {
  if constexpr (sizeof(U) == sizeof(uint32_t)) {
    return condition ? 1u : 0u;
  } else {
    return BitCast<U>(condition) & 1u;
  }
}

template <class U>
NIBBLE_LANES U SplatBits(uint32_t x) {
  return U{} + x;
}

// Exact for |values| below 2^24, which is all that callers need.
template <class F>
NIBBLE_LANES F ToFloat(LaneI<F> x) {
#if defined(__CUDACC__)
  return static_cast<F>(x);
#else
  if constexpr (LaneTraits<F>::kLanes == 1) {
    return static_cast<F>(x);
  } else {
    return __builtin_convertvector(x, F);
  }
#endif
}

// Toward zero; the argument is in the range of int32.
template <class F>
NIBBLE_LANES LaneI<F> Truncate(F x) {
#if defined(__CUDACC__)
  return static_cast<LaneI<F>>(x);
#else
  if constexpr (LaneTraits<F>::kLanes == 1) {
    return static_cast<LaneI<F>>(x);
  } else {
    return __builtin_convertvector(x, LaneI<F>);
  }
#endif
}

// a · b + c and c - a · b for an exact product: the result is then rounded once in any case, and an
// instruction that fuses both gives the same bits.
template <class F>
NIBBLE_LANES F AddExactProduct(F a, F b, F c) {
#if defined(__AVX512F__) && !defined(__CUDACC__)
  if constexpr (LaneTraits<F>::kLanes == 16) {
    return BitCast<F>(_mm512_fmadd_ps(BitCast<__m512>(a), BitCast<__m512>(b), BitCast<__m512>(c)));
  }
#endif
  return a * b + c;
}
template <class F>
NIBBLE_LANES F SubtractExactProduct(F a, F b, F c) {
#if defined(__AVX512F__) && !defined(__CUDACC__)
  if constexpr (LaneTraits<F>::kLanes == 16) {
    return BitCast<F>(_mm512_fnmadd_ps(BitCast<__m512>(a), BitCast<__m512>(b), BitCast<__m512>(c)));
  }
#endif
  return c - a * b;
}

// a · b + c rounded toward zero, for an exact product, c not negative and a · b at least 4 c. If
// only rounding to nearest is available, a result that was rounded up is decremented by one place.
template <class F>
NIBBLE_LANES F AddExactProductTowardZero(F a, F b, F c) {
#if defined(__AVX512F__) && !defined(__CUDACC__)
  if constexpr (LaneTraits<F>::kLanes == 16) {
    return BitCast<F>(_mm512_fmadd_round_ps(BitCast<__m512>(a), BitCast<__m512>(b),
                                            BitCast<__m512>(c),
                                            _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
  }
#endif
  const F product = a * b;
  const F sum = product + c;
  return FromBits<F>(BitsOf<F>(sum) - OneWhere<LaneU<F>>(sum - product > c));
}

template <class F>
NIBBLE_LANES F Magnitude(F x) {
  return FromBits<F>(BitsOf<F>(x) & 0x7fffffffu);
}

// The larger of two non-negative numbers.
template <class F>
NIBBLE_LANES F LargerNumber(F a, F b) {
#if defined(__AVX512F__) && !defined(__CUDACC__)
  if constexpr (LaneTraits<F>::kLanes == 16) {
    return BitCast<F>(_mm512_max_ps(BitCast<__m512>(a), BitCast<__m512>(b)));
  }
#endif
  return FromBits<F>(MaxBits<LaneU<F>>(BitsOf<F>(a), BitsOf<F>(b)));
}

// The larger of `magnitude` (not negative) and |x|. Undefined for NaN.
template <class F>
NIBBLE_LANES F MaxMagnitude(F magnitude, F x) {
#if defined(__AVX512DQ__) && !defined(__CUDACC__)
  if constexpr (LaneTraits<F>::kLanes == 16) {
    constexpr int kLargerMagnitudeSignClear = 0b1011;
    return BitCast<F>(
        _mm512_range_ps(BitCast<__m512>(magnitude), BitCast<__m512>(x), kLargerMagnitudeSignClear));
  }
#endif
  return FromBits<F>(MaxBits<LaneU<F>>(BitsOf<F>(magnitude), BitsOf<F>(x) & 0x7fffffffu));
}

// The smaller of |x| and `bound`, a positive constant; x is not NaN.
template <class F>
NIBBLE_LANES F MagnitudeAtMost(F x, float bound) {
#if defined(__AVX512DQ__) && !defined(__CUDACC__)
  if constexpr (LaneTraits<F>::kLanes == 16) {
    constexpr int kSmallerMagnitudeSignClear = 0b1010;
    return BitCast<F>(
        _mm512_range_ps(BitCast<__m512>(x), _mm512_set1_ps(bound), kSmallerMagnitudeSignClear));
  }
#endif
  using U = LaneU<F>;
  return FromBits<F>(
      MinBits<U>(BitsOf<F>(x) & 0x7fffffffu, SplatBits<U>(BitCast<uint32_t>(bound))));
}

// The 64-bit products of 32-bit lanes, as high and low words.
NIBBLE_LANES void MultiplyWide(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

#if !defined(__CUDACC__)
// Vectors do this in 64-bit lanes with a 32-bit value in the lower half; the upper half is ignored,
// so the product itself serves as the low word.
template <int kN>
struct WideVector {
  typedef uint64_t U __attribute__((vector_size(8 * kN)));
};
NIBBLE_LANES void MultiplyWide(WideVector<2>::U a, uint32_t b, WideVector<2>::U& high,
                               WideVector<2>::U& low) {
  low = (a & 0xffffffffu) * b;
  high = low >> 32;
}
#if defined(__AVX2__)
NIBBLE_LANES void MultiplyWide(WideVector<4>::U a, uint32_t b, WideVector<4>::U& high,
                               WideVector<4>::U& low) {
  low = BitCast<WideVector<4>::U>(
      _mm256_mul_epu32(BitCast<__m256i>(a), _mm256_set1_epi64x(static_cast<int64_t>(b))));
  high = low >> 32;
}
#endif
#if defined(__AVX512F__)
NIBBLE_LANES void MultiplyWide(WideVector<8>::U a, uint32_t b, WideVector<8>::U& high,
                               WideVector<8>::U& low) {
  low = BitCast<WideVector<8>::U>(
      _mm512_mul_epu32(BitCast<__m512i>(a), _mm512_set1_epi64(static_cast<int64_t>(b))));
  high = low >> 32;
}
#endif
#endif  // !__CUDACC__

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_LANES_H_

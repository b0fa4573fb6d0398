// Lane-generic arithmetic: every formula in this room is a template over F, where F is `float` or a
// vector of floats (GCC vector extension), so that the scalar oracle, the CPU's vector paths and
// the CUDA kernels run one text. CUDA instantiates it with `float` only.
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

// Unrolls the loop that follows; `n` is its trip count. nvcc knows its own pragma only, and its
// host pass hands pragmas to a compiler that does not know it.
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

// Order of non-negative floats is the order of their bits, and NaN sorts above infinity: integer
// minimum and maximum say what they do with NaN, the float ones do not.
template <class U>
NIBBLE_LANES U MinBits(U a, U b) {
  return a < b ? a : b;
}
template <class U>
NIBBLE_LANES U MaxBits(U a, U b) {
  return a > b ? a : b;
}

// 1 where a comparison holds: its result is a bool, or lanes of all ones or zeros.
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

// Exact for |values| below 2^24, which is all that is asked here.
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

// The 64-bit products of 32-bit lanes, as high and low words.
NIBBLE_LANES void MultiplyWide(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

#if !defined(__CUDACC__)
// Vectors do this in 64-bit lanes that hold a 32-bit value in their lower half; what is in the
// upper half never matters, so the product itself serves as the low word.
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

#include "kernels/cuda/check_data.h"

#include <algorithm>
#include <cmath>

#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

float Uniform(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// The Box-Muller transform.
float Normal(uint64_t bits) {
  const float radius = std::sqrt(-2.0f * std::log(Uniform(static_cast<uint32_t>(bits)) + 0x1p-25f));
  return radius * std::cos(6.2831853f * Uniform(static_cast<uint32_t>(bits >> 32)));
}

float Value(Temper temper, uint64_t seed, uint64_t row, uint64_t col, uint64_t index) {
  const uint64_t bits = Mix(seed, 2 * index);
  const uint64_t more = Mix(seed, 2 * index + 1);
  const float normal = Normal(bits);
  switch (temper) {
    case Temper::kNormal:
      return normal;
    case Temper::kHeavyTails:
      return normal * normal * normal * (more % 997 == 0 ? 300.0f : 0.01f);
    case Temper::kMixedBlocks: {
      const uint64_t block = Mix(seed + 1, (row / 16) * 1000003 + col / 16);
      return std::ldexp(normal, -static_cast<int>(block % 30));
    }
    case Temper::kSubnormal:
      return FromBits<float>(static_cast<uint32_t>(more) & 0x80ffffffu);
    case Temper::kZeros:
      if (more % 61 == 0) return normal;
      return more & 1 ? -0.0f : 0.0f;
    case Temper::kConstant:
      return seed % 2 ? -3.0f : 0.7f;
    case Temper::kHuge:
      return std::ldexp(normal, 126);
    case Temper::kTiny:
      return normal * 1e-38f;
    case Temper::kDyadic:
      return static_cast<float>(static_cast<int>(more % 49) - 24) * 0.25f;
    case Temper::kBadNumbers:
      if (more % 211 != 0) return normal;
      return FromBits<float>((static_cast<uint32_t>(more >> 32) & 0x80000000u) |
                             ((more >> 40) % 2 ? 0x7f800000u : 0x7fc12345u));
    case Temper::kAnyBits:
      return FromBits<float>(static_cast<uint32_t>(more));
    case Temper::kCount:
      break;
  }
  return 0;
}

}  // namespace

const char* TemperName(Temper temper) {
  constexpr const char* kNames[] = {"normal", "heavy tails", "mixed blocks", "subnormal",
                                    "zeros",  "constant",    "huge",         "tiny",
                                    "dyadic", "bad numbers", "any bits"};
  return kNames[static_cast<int>(temper)];
}

uint64_t Mix(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + index + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void FillMatrix(ThreadPool& pool, Temper temper, uint64_t seed, bool bf16, void* to, int64_t rows,
                int64_t cols, int64_t stride) {
  const int64_t chunk = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, stride));
  pool.ParallelFor((rows + chunk - 1) / chunk, [&](int64_t part, int) {
    for (int64_t row = part * chunk; row < std::min(rows, (part + 1) * chunk); ++row) {
      for (int64_t col = 0; col < stride; ++col) {
        const int64_t at = row * stride + col;
        // Memory outside the matrix must not be read: fill it with NaN.
        const float value = col < cols ? Value(temper, seed, row, col, at) : std::nanf("");
        if (bf16) {
          // Any bits: any BF16 bits, too, not only rounded values.
          static_cast<uint16_t*>(to)[at] =
              temper == Temper::kAnyBits ? static_cast<uint16_t>(BitsOf<float>(value) >> 7)
              : std::isnan(value)        ? static_cast<uint16_t>(BitsOf<float>(value) >> 16)
                                         : EncodeBf16(value);
        } else {
          static_cast<float*>(to)[at] = value;
        }
      }
    }
  });
}

}  // namespace nibble

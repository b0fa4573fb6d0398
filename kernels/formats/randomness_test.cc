// Philox and the Hadamard transform.
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/hadamard.h"
#include "kernels/formats/philox.h"

namespace nibble {
namespace {

using Words = PhiloxWords<uint32_t>;

struct KnownAnswer {
  uint32_t counter[4], key[2], expected[4];
};
constexpr KnownAnswer kPhilox[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, GivesTheKnownAnswers) {
  for (const KnownAnswer& known : kPhilox) {
    Words counter;
    for (int i = 0; i < 4; ++i) counter.word[i] = known.counter[i];
    const Words words = Philox4x32(counter, known.key[0], known.key[1]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], known.expected[i]);
  }
}

// The generator of the paper, written with 64-bit multiplications.
Words PlainPhilox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xd2511f53} * c.word[0];
    const uint64_t p1 = uint64_t{0xcd9e8d57} * c.word[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return c;
}

// Vectors have each word in the lower half of a 64-bit lane; the upper half may have any bits.
TEST(Philox, LanesAreIndependentDrawsUnderOneKey) {
  using U2 = WideVector<2>::U;
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    PhiloxWords<U2> counter;
    for (U2& word : counter.word) word = U2{random(), random()};
    const uint32_t k0 = static_cast<uint32_t>(random());
    const uint32_t k1 = static_cast<uint32_t>(random());
    const PhiloxWords<U2> words = Philox4x32(counter, k0, k1);
    for (int lane = 0; lane < 2; ++lane) {
      Words one;
      for (int w = 0; w < 4; ++w) one.word[w] = static_cast<uint32_t>(counter.word[w][lane]);
      const Words expected = PlainPhilox(one, k0, k1);
      const Words scalar = Philox4x32(one, k0, k1);
      for (int w = 0; w < 4; ++w) {
        ASSERT_EQ(static_cast<uint32_t>(words.word[w][lane]), expected.word[w]);
        ASSERT_EQ(scalar.word[w], expected.word[w]);
      }
    }
  }
}

TEST(RoundingBits, PairsOfLanesDrawTheSameAsSingleBlocks) {
  using U2 = WideVector<2>::U;
  const RandomStream stream = {.seed = 0xfedcba9876543210, .stream = 5, .step = 9};
  const uint64_t blocks[4] = {0, 7, 0xffffffff, uint64_t{3} << 32};
  PhiloxWords<U2> pair[2];
  RoundingBitsPair<U2>(stream, RoundKeysOf(stream), U2{blocks[0], blocks[1]},
                       U2{blocks[2], blocks[3]}, pair[0], pair[1]);
  for (int i = 0; i < 4; ++i) {
    const Words words = RoundingBits<uint32_t>(stream, static_cast<uint32_t>(blocks[i]),
                                               static_cast<uint32_t>(blocks[i] >> 32));
    for (int w = 0; w < 4; ++w) {
      EXPECT_EQ(static_cast<uint32_t>(pair[i / 2].word[w][i % 2]), words.word[w]) << i;
    }
  }
}

TEST(RoundingBits, KeyIsTheSeedAndCounterIsBlockStreamStep) {
  // The third known answer, which consists of different words.
  const KnownAnswer& known = kPhilox[2];
  const RandomStream stream = {.seed = uint64_t{known.key[1]} << 32 | known.key[0],
                               .stream = known.counter[2],
                               .step = known.counter[3]};
  const Words words = RoundingBits<uint32_t>(stream, known.counter[0], known.counter[1]);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], known.expected[i]);
  // Element e of the 16 uses byte e % 4 of word e / 4.
  const uint8_t bytes[16] = {0x09, 0xfe, 0x6c, 0xd1, 0xeb, 0xcc, 0xfd, 0x94,
                             0x20, 0xe4, 0x01, 0x50, 0xa1, 0x6e, 0x12, 0x24};
  for (int e = 0; e < 16; ++e) {
    EXPECT_EQ(words.word[e / 4] >> (8 * (e % 4)) & 0xff, bytes[e]) << e;
  }
}

// [n] values by definition: an O(n²) sum, in double.
std::vector<double> NaiveHadamard(const std::vector<float>& x, const SignMask& signs) {
  const int n = static_cast<int>(x.size());
  std::vector<double> y(n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) {
      const bool negative = signs.word[i / 32] >> (i % 32) & 1;
      const bool odd = std::popcount(static_cast<unsigned>(i & j)) % 2 == 1;
      y[j] += negative != odd ? -x[i] : x[i];
    }
  }
  return y;
}

// To 8 significant bits, ties to even; of normal values.
float NearestBf16(double x) {
  if (x == 0) return 0.0f;
  int exponent;
  const double fraction = std::frexp(x, &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
}

// The complete transform, computed from the sums that the register version returns.
template <class F>
void Tile16(F (&x)[16], uint32_t signs) {
  uint32_t sign_bits[16];
  for (int i = 0; i < 16; ++i) sign_bits[i] = (signs >> i & 1) << 31;
  HadamardSumsTile16<F>(x, sign_bits);
  for (F& y : x) y = FromBits<F>(RoundToBf16Bits<F>(y * 0.25f));
}

TEST(Hadamard, WorkedVectorsMatchBitForBit) {
  struct Case {
    uint16_t in[16], out[16];
  };
  const Case cases[] = {
      {{0, 0, 0, 0x3f80},
       {0xbe80, 0x3e80, 0x3e80, 0xbe80, 0xbe80, 0x3e80, 0x3e80, 0xbe80, 0xbe80, 0x3e80, 0x3e80,
        0xbe80, 0xbe80, 0x3e80, 0x3e80, 0xbe80}},
      {{0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170},
       {0xc168, 0xc0f0, 0x40d0, 0xbf00, 0x40d0, 0xbf00, 0xc168, 0x4108, 0x40f0, 0x4168, 0x3f00,
        0x3fc0, 0x3f00, 0xc020, 0x4118, 0xc178}},
  };
  for (const Case& c : cases) {
    float any_size[16], tile[16];
    for (int i = 0; i < 16; ++i) any_size[i] = tile[i] = DecodeBf16(c.in[i]);
    HadamardBf16<float>(any_size, 16, 1, kDefaultSigns);
    Tile16<float>(tile, kDefaultSigns.word[0]);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(EncodeBf16(any_size[i]), c.out[i]) << i;
      EXPECT_EQ(EncodeBf16(tile[i]), c.out[i]) << i;
    }
  }
}

TEST(Hadamard, DefaultSignsAreThePapersVectorRepeated) {
  const char* signs = "+++-+------+-+--";
  for (int i = 0; i < 128; ++i)
    EXPECT_EQ(kDefaultSigns.Bit(i), signs[i % 16] == '-' ? 1u : 0u) << i;
}

TEST(Hadamard, EverySizeMatchesTheDefinitionIfSumsAreExact) {
  std::mt19937_64 random(2);
  for (int n = 2; n <= 128; n *= 2) {
    const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    for (int trial = 0; trial < 200; ++trial) {
      SignMask signs;
      for (uint32_t& word : signs.word) word = static_cast<uint32_t>(random());
      std::vector<float> x(n);
      for (float& v : x) v = (static_cast<int>(random() % 511) - 255) / 64.0f;
      const std::vector<double> sums = NaiveHadamard(x, signs);
      // With a stride; the values in between must not change.
      const int stride = 1 + trial % 3;
      std::vector<float> spread(n * stride, 77.0f);
      for (int i = 0; i < n; ++i) spread[i * stride] = x[i];
      HadamardBf16<float>(spread.data(), n, stride, signs);
      for (int i = 0; i < n * stride; ++i) {
        if (i % stride != 0) {
          ASSERT_EQ(spread[i], 77.0f);
          continue;
        }
        const float scaled = static_cast<float>(sums[i / stride] * norm);
        ASSERT_EQ(spread[i], NearestBf16(scaled)) << "size " << n << " at " << i / stride;
      }
    }
  }
}

TEST(Hadamard, IsOrthogonalAndItsOwnInverseWithoutSigns) {
  for (const int n : {4, 16, 64}) {  // whose norms are powers of two: no rounding at all
    for (int i = 0; i < n; ++i) {
      std::vector<float> unit(n, 0.0f);
      unit[i] = 1;
      std::vector<float> y = unit;
      HadamardBf16<float>(y.data(), n, 1, SignMask());
      double square = 0;
      for (const float v : y) square += static_cast<double>(v) * v;
      EXPECT_EQ(square, 1.0);
      for (int j = 0; j < i; ++j) {
        std::vector<float> other(n, 0.0f);
        other[j] = 1;
        HadamardBf16<float>(other.data(), n, 1, SignMask());
        double dot = 0;
        for (int k = 0; k < n; ++k) dot += static_cast<double>(y[k]) * other[k];
        EXPECT_EQ(dot, 0.0) << i << " and " << j;
      }
      HadamardBf16<float>(y.data(), n, 1, SignMask());
      EXPECT_EQ(y, unit);
    }
  }
}

TEST(Hadamard, Tile16GivesTheBitsOfTheGeneralFunctionOnAnyBf16) {
  using F4 = LaneVector<4>::F;
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 20000; ++trial) {
    const uint32_t signs = static_cast<uint32_t>(random() & 0xffff);
    float general[16], tile[16];
    F4 lanes[16] = {};
    for (int i = 0; i < 16; ++i) {
      // A few binades in most trials, every exponent in the others; never so large that sums
      // overflow.
      const uint32_t exponent = trial % 4 == 0 ? random() % 240 : 120 + random() % 8;
      const uint32_t bits = (random() & 1) << 31 | exponent << 23 | (random() & 0x7f) << 16;
      general[i] = tile[i] = lanes[i][2] = std::bit_cast<float>(bits);
    }
    HadamardBf16<float>(general, 16, 1, SignMask{{signs, 0, 0, 0}});
    Tile16<float>(tile, signs);
    Tile16<F4>(lanes, signs);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(general[i]), std::bit_cast<uint32_t>(tile[i]));
      ASSERT_EQ(std::bit_cast<uint32_t>(general[i]), BitsOf<F4>(lanes[i])[2]);
    }
  }
}

}  // namespace
}  // namespace nibble

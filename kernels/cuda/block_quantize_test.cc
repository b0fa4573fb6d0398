// The block arithmetic of the CUDA kernels, run on the host through the portable versions in
// instructions.h: the fast path against the exact one, and both against the CPU's reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/reference.h"
#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/mx_encode.h"

namespace nibble::gpu {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint32_t Bits() { return static_cast<uint32_t>(engine_() >> 16); }
  float Normal() { return normal_(engine_); }
  // A finite value of any kind: normal, tiny, huge, zero.
  float Value(float scale) {
    switch (Bits() % 8) {
      case 0:
        return Bits() % 2 ? 0.0f : -0.0f;
      case 1:
        return std::ldexp(Normal(), static_cast<int>(Bits() % 40) - 35) * scale;
      case 2:
        return Normal() * Normal() * Normal() * scale;
      default:
        return Normal() * scale;
    }
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

float ToBf16(float x) { return FromBits<float>(RoundToBf16Bits<float>(x)); }

uint32_t Nibbles(const float (&v)[16], int half, bool stochastic,
                 const PhiloxWords<uint32_t>& random, float encode) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const int e = 8 * half + i;
    const uint32_t byte = (random.word[e / 4] >> (8 * (e % 4))) & 0xffu;
    const float y = v[e] * encode;
    word |= ((stochastic ? E2M1::EncodeStochastic(y, byte) : E2M1::Encode(y)) & 7u) << (4 * i);
  }
  return word;
}

// Steps from a float to its neighbours.
float Neighbour(float x, int steps) {
  return FromBits<float>(BitsOf<float>(x) + static_cast<uint32_t>(steps));
}

TEST(BlockEncode, NearestMatchesAroundEveryTieAndGridPoint) {
  Random random(1);
  const float points[] = {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f,  2.5f, 3.0f,
                          3.5f,  4.0f, 5.0f,  6.0f, 7.0f,  8.0f, 9.0f,  16.0f, 1e30f};
  for (const float point : points) {
    for (int steps = -70; steps <= 70; ++steps) {
      float v[16];
      for (int i = 0; i < 16; ++i) v[i] = Neighbour(point, steps + i % 3) * (i % 2 ? -1.0f : 1.0f);
      const uint32_t low = NearestMagnitudes(v, 0x1p-3f);
      ASSERT_EQ(low, Nibbles(v, 0, false, {}, 1.0f)) << point << " " << steps;
    }
  }
  for (int trial = 0; trial < 2000000; ++trial) {
    float v[16];
    for (float& x : v) x = FromBits<float>(0x3c000000u + random.Bits() % 0x06000000u);
    ASSERT_EQ(NearestMagnitudes(v, 0x1p-3f), Nibbles(v, 0, false, {}, 1.0f)) << trial;
  }
}

// Includes the one place where the formula's FP32 sum rounds up to the next code.
TEST(BlockEncode, StochasticMatchesAroundEveryThresholdForEveryRandomByte) {
  Random random(2);
  for (int k = 0; k <= 4096; ++k) {
    for (int steps = -4; steps <= 4; ++steps) {
      const float at = static_cast<float>(k) / 1024.0f;
      if (k == 0 && steps < 0) continue;
      const float t = Neighbour(at, steps);
      for (uint32_t byte = 0; byte < 256; byte += 8) {
        float v[16];
        for (int i = 0; i < 16; ++i) v[i] = i % 2 ? -t : t;
        PhiloxWords<uint32_t> bits;
        for (uint32_t w = 0; w < 4; ++w) {
          bits.word[w] = 0;
          for (uint32_t b = 0; b < 4; ++b) bits.word[w] |= (byte + (4 * w + b) % 8) << (8 * b);
        }
        ASSERT_EQ(StochasticMagnitudes(v, 0x1p-3f, bits.word[0], bits.word[1]),
                  Nibbles(v, 0, true, bits, 1.0f))
            << t << " " << byte;
      }
    }
  }
  // Short of 1/2 by a few units of 2^-27, for every random byte that could make up the difference.
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (int units = -6; units <= 6; ++units) {
      const double t = 0.5 - byte / 512.0 - units * 0x1p-28;
      if (t < 0) continue;
      float v[16];
      for (float& x : v) x = static_cast<float>(t);
      const uint32_t word = byte * 0x01010101u;
      const PhiloxWords<uint32_t> bits = {{word, word, word, word}};
      ASSERT_EQ(StochasticMagnitudes(v, 0x1p-3f, word, word), Nibbles(v, 0, true, bits, 1.0f))
          << byte << " " << units;
    }
  }
  for (int trial = 0; trial < 2000000; ++trial) {
    float v[16];
    for (float& x : v) x = FromBits<float>(0x3a000000u + random.Bits() % 0x08000000u);
    PhiloxWords<uint32_t> bits;
    for (uint32_t& w : bits.word) w = random.Bits();
    ASSERT_EQ(StochasticMagnitudes(v, 0x1p-3f, bits.word[0], bits.word[1]),
              Nibbles(v, 0, true, bits, 1.0f))
        << trial;
  }
}

TEST(BlockEncode, PrecomputedRoundKeysAndStartsGiveTheSameDraws) {
  Random random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const RandomStream stream = {(uint64_t{random.Bits()} << 32) | random.Bits(), random.Bits(),
                                 random.Bits()};
    const uint64_t block = (uint64_t{random.Bits() % 4} << 32) | random.Bits();
    const PhiloxWords<uint32_t> expected = RoundingBits<uint32_t>(
        stream, static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32));
    const RoundKeys keys = RoundKeysOf(stream.seed);
    const PhiloxWords<uint32_t> got = RoundingBits(stream, keys, block);
    const PhiloxWords<uint32_t> started =
        RoundingBits(PhiloxStartOf(stream, keys, static_cast<uint32_t>(block >> 32)), keys,
                     static_cast<uint32_t>(block));
    for (int w = 0; w < 4; ++w) {
      ASSERT_EQ(got.word[w], expected.word[w]);
      ASSERT_EQ(started.word[w], expected.word[w]);
    }
  }
}

TEST(BlockEncode, EmulationTableHasEveryCodeTimesScale) {
  for (uint32_t scale = 0; scale < 0x7f; ++scale) {
    const EmulationTable table = EmulationTableFor(scale);
    const float value = E4M3::Decode<float>(scale);
    for (uint32_t first = 0; first < 16; ++first) {
      // Codes first, first + 1, … first + 7 modulo 16; zero scales occur only with zero codes.
      uint32_t codes = 0;
      for (uint32_t i = 0; i < 8 && scale != 0; ++i) codes |= ((first + i) % 16) << (4 * i);
      uint32_t pair[4];
      Emulate(codes, table, pair);
      for (int i = 0; i < 8; ++i) {
        const uint32_t code = (codes >> (4 * i)) & 0xfu;
        const uint16_t got = static_cast<uint16_t>(pair[i / 2] >> (16 * (i % 2)));
        const float product = E2M1::Decode<float>(code & 7u) * value;
        const uint16_t expected = static_cast<uint16_t>(EncodeBf16(product) | (code >> 3 << 15));
        ASSERT_EQ(got, expected) << scale << " " << code;
      }
    }
  }
}

// The steps of the tile kernels for one block, in their order.
struct Fast {
  BlockCodes codes;
  uint32_t scale_code;
};

template <bool kStochastic>
Fast FastFromRow(const float (&x)[16], const Nvfp4::TensorScale& tensor,
                 const PhiloxWords<uint32_t>& random) {
  uint32_t pair[8];
  float v[16];
  for (int k = 0; k < 8; ++k) {
    pair[k] = Bf16Pair(x[2 * k], x[2 * k + 1]);
    v[2 * k] = FromBits<float>(pair[k] << 16);
    v[2 * k + 1] = FromBits<float>(pair[k] & 0xffff0000u);
  }
  const uint32_t scale = ScaleCodeOf(PairsAmax(pair), tensor);
  return {EncodeBlock<kStochastic>(v, FactorOf(scale, tensor, false), scale == 0,
                                   SignsOfNeighbours(pair[0], pair[1], pair[2], pair[3]),
                                   SignsOfNeighbours(pair[4], pair[5], pair[6], pair[7]), random),
          scale};
}

template <bool kStochastic, int kSecond>
Fast FastFromColumn(const uint32_t (&row)[16], const uint32_t* signs,
                    const Nvfp4::TensorScale& tensor, const PhiloxWords<uint32_t>& random) {
  float v[16];
  uint32_t split[8];
  LoadColumn<kSecond>(row, signs, v);
  HadamardSums(v, split);
  UnpackSplit(split, v);
  const uint32_t scale = ScaleCodeOf(PairsAmax(split), ScaleOfSums(tensor));
  return {EncodeBlock<kStochastic>(v, FactorOf(scale, tensor, true), scale == 0,
                                   SignsOfSplit(split[0], split[1], split[2], split[3]),
                                   SignsOfSplit(split[4], split[5], split[6], split[7]), random),
          scale};
}

// The reference's result for 16 values in a row (stride 1) or two columns of 16.
struct Reference {
  uint8_t codes[16] = {};
  uint8_t scales[2] = {};
  uint16_t emulated[32] = {};
  StatSums stats;
};

Reference ReferenceOf(const float* x, bool columns, bool hadamard, const uint32_t* signs,
                      const Nvfp4::TensorScale& tensor, bool stochastic,
                      const RandomStream& random) {
  Reference result;
  cpu::EncodeArgs args = {};
  args.x = {x, false, columns ? 2 : 16, columns ? 16 : 1, columns ? 2 : 16, hadamard, {}};
  for (int i = 0; i < 16; ++i) args.x.sign_bits[i] = signs[i];
  args.element = Element::kE2M1;
  args.stochastic = stochastic;
  args.inline_nvfp4 = true;
  args.tensor = tensor;
  args.random = random;
  args.copy_row_blocks = 1;
  args.codes = result.codes;
  args.codes_stride = 8;
  args.scales = result.scales;
  args.scales_stride = 1;
  args.emulated = result.emulated;
  args.emulated_stride = 16;
  args.emulated_transposed = columns;
  args.stats = &result.stats;
  args.norm = StatNormFor(tensor.amax);
  cpu::ReferenceEncode(args, columns);
  return result;
}

void ExpectSame(const Fast& fast, const Reference& reference, int line) {
  ASSERT_EQ(fast.scale_code, reference.scales[line]);
  ASSERT_EQ(std::memcmp(fast.codes.word, reference.codes + 8 * line, 8), 0)
      << std::hex << fast.codes.word[0] << " " << fast.codes.word[1];
  uint32_t pair[8];
  const EmulationTable table = EmulationTableFor(fast.scale_code);
  uint32_t half[4];
  for (int h = 0; h < 2; ++h) {
    Emulate(fast.codes.word[h], table, half);
    for (int k = 0; k < 4; ++k) pair[4 * h + k] = half[k];
  }
  ASSERT_EQ(std::memcmp(pair, reference.emulated + 16 * line, 32), 0);
}

template <bool kStochastic>
void CompareWithReference(uint64_t seed, int trials) {
  Random random(seed);
  for (int trial = 0; trial < trials; ++trial) {
    float x[32];
    // Block scales from far below the tensor's up to its own; tensors from 1e-16 to 1e18.
    const float tensor_amax = std::ldexp(1.0f + 0.5f * std::fabs(random.Normal()),
                                         static_cast<int>(random.Bits() % 110) - 50);
    const float scale = tensor_amax * std::ldexp(1.0f, -static_cast<int>(random.Bits() % 22));
    for (float& value : x) value = ToBf16(random.Value(scale * 0.4f));
    const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(tensor_amax, random.Bits() % 2 == 0);
    ASSERT_TRUE(RangeIsPlain(tensor));
    const RandomStream stream = {random.Bits(), random.Bits(), random.Bits()};
    const RoundKeys keys = RoundKeysOf(stream.seed);
    uint32_t signs[16];
    for (uint32_t& sign : signs) sign = random.Bits() & 0x80000000u;

    float run[16];
    std::memcpy(run, x, sizeof(run));
    ExpectSame(FastFromRow<kStochastic>(run, tensor, RoundingBits(stream, keys, 0)),
               ReferenceOf(x, false, false, signs, tensor, kStochastic, stream), 0);
    if (::testing::Test::HasFatalFailure()) return;

    uint32_t row[16];
    for (int i = 0; i < 16; ++i) row[i] = Bf16Pair(x[2 * i], x[2 * i + 1]);
    const Reference columns = ReferenceOf(x, true, true, signs, tensor, kStochastic, stream);
    ExpectSame(FastFromColumn<kStochastic, 0>(row, signs, tensor, RoundingBits(stream, keys, 0)),
               columns, 0);
    ExpectSame(FastFromColumn<kStochastic, 1>(row, signs, tensor, RoundingBits(stream, keys, 1)),
               columns, 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(BlockEncode, NearestMatchesTheReference) { CompareWithReference<false>(4, 400000); }
TEST(BlockEncode, StochasticMatchesTheReference) { CompareWithReference<true>(5, 400000); }

// Every scale of MXFP4, with magnitudes up to the largest that has it.
TEST(MxEncode, MatchesTheFormulaForEveryScale) {
  Random random(7);
  for (uint32_t scale = 0; scale < 254; ++scale) {
    for (int trial = 0; trial < 300; ++trial) {
      float v[16];
      uint32_t signs[2] = {0, 0};
      for (int i = 0; i < 16; ++i) {
        // Up to 6, some of them on ties.
        const uint32_t bits = random.Bits();
        const float step = trial % 3 == 0 ? 0.25f * static_cast<float>(bits % 25)
                                          : 6.0f * static_cast<float>(bits % 65536) / 65536.0f;
        v[i] = (bits >> 20) % 2 ? -step * E8M0::Decode(scale) : step * E8M0::Decode(scale);
        signs[i / 8] |= (BitsOf<float>(v[i]) >> 31) << (4 * (i % 8) + 3);
      }
      PhiloxWords<uint32_t> bytes;
      for (uint32_t& word : bytes.word) word = random.Bits();
      const float encode = E8M0::Reciprocal(scale);
      const float factor = MxFactorOf(scale);
      const BlockCodes nearest = EncodeBlock<false>(v, factor, false, signs[0], signs[1], bytes);
      const BlockCodes drawn = EncodeBlock<true>(v, factor, false, signs[0], signs[1], bytes);
      for (int h = 0; h < 2; ++h) {
        ASSERT_EQ(nearest.word[h], Nibbles(v, h, false, bytes, encode) | signs[h]) << scale;
        ASSERT_EQ(drawn.word[h], Nibbles(v, h, true, bytes, encode) | signs[h]) << scale;
        uint32_t pair[4];
        Emulate(nearest.word[h], MxEmulationTableFor(scale), pair);
        for (int i = 0; i < 8; ++i) {
          const uint32_t code = nearest.word[h] >> (4 * i) & 0xfu;
          const float value = E2M1::Decode<float>(code & 7u) * E8M0::Decode(scale);
          ASSERT_EQ(pair[i / 2] >> (16 * (i % 2)) & 0xffffu,
                    static_cast<uint32_t>(EncodeBf16(value) | (code >> 3 << 15)))
              << scale << " " << code;
        }
      }
    }
  }
}

TEST(MxEncode, TransformOf32HasTheBitsOfTheFormula) {
  Random random(8);
  for (int trial = 0; trial < 100000; ++trial) {
    const SignMask signs = {{random.Bits(), 0, 0, 0}};
    const float scale = std::ldexp(1.0f, static_cast<int>(random.Bits() % 200) - 100);
    float expected[32];
    float half[2][16];
    for (int i = 0; i < 32; ++i) {
      expected[i] = ToBf16(random.Value(scale));
      half[i / 16][i % 16] = signs.Bit(i) ? -expected[i] : expected[i];
    }
    HadamardBf16<float>(expected, 32, 1, signs);
    uint32_t split[2][8];
    Hadamard32(half[0], half[1], split);
    float amax = 0;
    for (int h = 0; h < 2; ++h) {
      float v[16];
      UnpackSplit(split[h], v);
      const uint32_t sign[2] = {SignsOfSplit(split[h][0], split[h][1], split[h][2], split[h][3]),
                                SignsOfSplit(split[h][4], split[h][5], split[h][6], split[h][7])};
      for (int i = 0; i < 16; ++i) {
        const float want = expected[16 * h + i];
        amax = std::max(amax, std::fabs(want));
        ASSERT_EQ(std::fabs(v[i]), std::fabs(want)) << trial;
        ASSERT_EQ(sign[i / 8] >> (4 * (i % 8) + 3) & 1u, BitsOf<float>(want) >> 31) << trial;
      }
    }
    ASSERT_EQ(PairsAmax(split), amax) << trial;
  }
}

// NaN, infinities, huge and tiny tensors: the exact path, statistics included.
TEST(ExactBlock, MatchesTheReferenceForAnyInput) {
  Random random(6);
  for (int trial = 0; trial < 400000; ++trial) {
    float x[16];
    const float amax = FromBits<float>(random.Bits() % 0x7f800001u);
    for (float& value : x) {
      value = FromBits<float>(random.Bits());
      if (random.Bits() % 2) value = random.Value(amax * 0.4f);
    }
    const bool hadamard = random.Bits() % 2;
    const bool stochastic = random.Bits() % 2;
    const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(amax, random.Bits() % 2 == 0);
    const RandomStream stream = {random.Bits(), random.Bits(), random.Bits()};
    uint32_t signs[16];
    for (uint32_t& sign : signs) sign = random.Bits() & 0x80000000u;
    const Reference reference = ReferenceOf(x, false, hadamard, signs, tensor, stochastic, stream);

    if (hadamard) HadamardExactly(x, signs);
    ExactAmax found;
    for (const float value : x) found.Add(value);
    const ExactBlock block = EncodeExactly(x, found.bits, tensor, stochastic,
                                           RoundingBits(stream, RoundKeysOf(stream.seed), 0));
    ExpectSame({block.codes, block.scale_code}, reference, 0);
    StatSums sums;
    AddStatistics(x, block, StatNormFor(amax), sums);
    ASSERT_TRUE(sums == reference.stats) << trial;
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace nibble::gpu

// Encodes one block of 16 values to E2M1 codes in few instructions: the inner arithmetic of the
// tile kernels. It gives the bits of the formulas in kernels/formats under the conditions stated
// here, which the kernels check (RangeIsPlain per tensor; NaN and infinity per block);
// exact_block.h handles everything else. Each step explains why it is exact; block_quantize_test.cc
// compares the two on the host, instruction_check.cu and gpu_check on the card.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CUDA_BLOCK_ENCODE_H_
#define NIBBLE_KERNELS_CUDA_BLOCK_ENCODE_H_

#include <cstdint>

#include "kernels/cuda/instructions.h"
#include "kernels/formats/hadamard.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"

namespace nibble::gpu {

// Codes of a block in element order, packed little-endian.
struct BlockCodes {
  uint32_t word[2];
};

// Factors contain powers of two besides the encode factor (see FactorOf). That is exact while no
// relevant value leaves FP32's normal range: with S_enc in this range every encode factor is in
// [2^-99, 2^79], and a block whose scale is not zero has an amax of at least 2^-78, so intermediate
// values below 2^-126 are far below the smallest step.
NIBBLE_LANES bool RangeIsPlain(const Nvfp4::TensorScale& tensor) {
  const uint32_t bits = BitsOf<float>(tensor.encode);
  return bits >= ((127u - 90u) << 23) && bits <= ((127u + 70u) << 23);
}

// The factor of elements for each E4M3 code of a block's scale: the encode factor, times the power
// of two that the rounding below needs, times the Hadamard norm 1/4 if the elements are sums
// without it. Code 0 gives 0: all codes of the block become 0.
NIBBLE_LANES float FactorOf(uint32_t code, const Nvfp4::TensorScale& tensor, bool hadamard_sums) {
  if (code == 0 || code >= 0x7fu) return 0.0f;
  const float encode = Nvfp4::EncodeFactor<float>(E4M3::Decode<float>(code), tensor);
  return encode * 0x1p-3f * (hadamard_sums ? 0.25f : 1.0f);
}

// The scale of a tensor whose blocks' amax lacks the Hadamard norm 1/4: a product by a power of two
// is exact where RangeIsPlain, so that the norm can wait until after either formula.
NIBBLE_LANES Nvfp4::TensorScale ScaleOfSums(Nvfp4::TensorScale tensor) {
  tensor.encode *= 0.25f;
  tensor.encode_over_6 *= 0.25f;
  return tensor;
}

// The E4M3 code of a block's scale. cvt rounds and saturates like E4M3::Nearest. Where DivideBySix
// is not exact, the code is 0 either way.
NIBBLE_LANES uint32_t ScaleCodeOf(float block_amax, const Nvfp4::TensorScale& tensor) {
  if (tensor.divide_first) return E4M3Code(DivideBySix(block_amax) * tensor.encode);
  return E4M3Code(Nvfp4::UnroundedScale<float>(block_amax, tensor));
}

// Largest magnitude of a block of 8 pairs of BF16; NaN if there is one.
NIBBLE_LANES float PairsAmax(const uint32_t (&pair)[8]) {
  const uint32_t a =
      LargerMagnitudes(LargerMagnitudes(pair[0], pair[1]), LargerMagnitudes(pair[2], pair[3]));
  const uint32_t b =
      LargerMagnitudes(LargerMagnitudes(pair[4], pair[5]), LargerMagnitudes(pair[6], pair[7]));
  const uint32_t both = LargerMagnitudes(a, b);
  return LargerMagnitude(Magnitude(FromBits<float>(both << 16)),
                         FromBits<float>(both & 0xffff0000u));
}

// Bits 3, 7, … 31: the signs of elements 0 to 7, from pairs (0, 1), (2, 3), (4, 5), (6, 7), of
// which only the top bits of the lanes are used. Other bits are undefined.
NIBBLE_LANES uint32_t SignsOfNeighbours(uint32_t p01, uint32_t p23, uint32_t p45, uint32_t p67) {
  const uint32_t a = Permute(p01, p23, 0x7351u);  // top bytes of 0, 2, 1, 3
  const uint32_t b = Permute(p45, p67, 0x7351u);
  const uint32_t even = Permute(a, b, 0xdc98u);  // 0xff where negative: 0, 2, 4, 6
  const uint32_t odd = Permute(a, b, 0xfebau);
  return Select(0x0f0f0f0fu, even, odd);
}
// The same from pairs (0, 2), (4, 6) and (1, 3), (5, 7).
NIBBLE_LANES uint32_t SignsOfSplit(uint32_t p02, uint32_t p46, uint32_t p13, uint32_t p57) {
  const uint32_t even = Permute(p02, p46, 0xfdb9u);
  const uint32_t odd = Permute(p13, p57, 0xfdb9u);
  return Select(0x0f0f0f0fu, even, odd);
}

// Both roundings below work on t = |x| · encode as FP16 times 2^-14, FP16's smallest normal value:
// its bits over 2^9 are the E2M1 code of t as a fixed-point number, because subnormals make the
// grid's first line 2t, and the exponents the lines t + 2 and t/2 + 4. Truncating to FP16 keeps 9
// bits below the code; what is added to them carries into it. t is first found as t/8, which
// saturates at 1: that is code 8, which is reduced to 7.

// Codes of 8 values in nibbles, from pairs (0, 2), (4, 6) and (1, 3), (5, 7) of such sums, which
// are at most 0x11ff: the upper bytes of the lanes are the code times two, plus one more bit.
NIBBLE_LANES uint32_t PackCodes(const uint32_t (&even)[2], const uint32_t (&odd)[2]) {
  const uint32_t evens = Permute(even[0], even[1], 0x7531u);
  const uint32_t odds = Permute(odd[0], odd[1], 0x7531u);
  return Select(0x0f0f0f0fu, evens >> 1, odds * 8u);
}

// Magnitude codes of 8 values in nibbles, rounded to nearest even. `factor`: FactorOf(…).
//
// Half a code is added to t less one last place: that rounds halves down. Halves between codes are
// 1/4, 5/4, 5/2 and 5, which round down to an even code, with mantissas 1 and 1.25; and 3/4, 7/4
// and 7/2, which round up to one, with mantissas 1.5 and 1.75. Adding t times 0.36 last places of 1
// to t raises it by one last place for mantissas from 1.39 on, and otherwise not at all: that
// rounds the latter up, and only them.
NIBBLE_LANES uint32_t NearestMagnitudes(const float* v, float factor) {
  constexpr float kLastPlaces = 0.36f * 0x1p-23f;
  constexpr float kLessOne = 0x1.fffffep-1f * 0x1p-11f;  // times 2^-11, less one last place
  uint32_t even[2];
  uint32_t odd[2];
  NIBBLE_UNROLL(2)
  for (int h = 0; h < 2; ++h) {
    float t[4];
    NIBBLE_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const float t8 = MultiplySaturated(Magnitude(v[4 * h + i]), factor);
      t[i] = MultiplyTowardZero(MultiplyAdd(t8, kLastPlaces, t8), kLessOne);
    }
    // At most the largest sum of code 7.
    even[h] = AddAtMost(HalvesTowardZero(t[0], t[2]), 0x01000100u, 0x0fff0fffu);
    odd[h] = AddAtMost(HalvesTowardZero(t[1], t[3]), 0x01000100u, 0x0fff0fffu);
  }
  return PackCodes(even, odd);
}

// The same with stochastic rounding; `random`: 8 bytes. `factor`: FactorOf(…).
//
// Adding the random byte to the upper 8 of the 9 bits and dropping all 9 is floor(code +
// random/256).
//
// The formula adds random/256 of the spacing in FP32 and then truncates. That sum is exact wherever
// it could reach the next code, with one exception: t below 1/4, where a sum that is short of 1/2
// by at most 2^-26 rounds up to it. Adding 2^-26 (here times 2^-14) to t, rounded down, moves
// exactly those values over the step: below 1/4 the sum is exact or cut within the same 2^-10, from
// 1/4 on t's last place is at least 2^-25 and rounding down gives t again. Scaling by a power of
// two changes neither, so that one fused multiply-add does both.
NIBBLE_LANES uint32_t StochasticMagnitudes(const float* v, float factor, uint32_t random0,
                                           uint32_t random1) {
  uint32_t even[2];
  uint32_t odd[2];
  NIBBLE_UNROLL(2)
  for (int h = 0; h < 2; ++h) {
    float t[4];
    NIBBLE_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const float t8 = MultiplySaturated(Magnitude(v[4 * h + i]), factor);
      t[i] = MultiplyAddDown(t8, 0x1p-11f, 0x1p-40f);
    }
    const uint32_t random = h == 0 ? random0 : random1;
    const uint32_t bytes02 = random & 0x00ff00ffu;
    const uint32_t bytes13 = Permute(random, 0u, 0x4341u);
    even[h] = MultiplyAdd(bytes02, 2u, HalvesTowardZero(t[0], t[2]));
    odd[h] = MultiplyAdd(bytes13, 2u, HalvesTowardZero(t[1], t[3]));
  }
  const uint32_t codes = PackCodes(even, odd);
  return codes - ((codes >> 3) & 0x11111111u);
}

// The keys of Philox's ten rounds, so that the rounds read them from constant memory.
struct RoundKeys {
  uint32_t low[10];
  uint32_t high[10];
};
NIBBLE_LANES RoundKeys RoundKeysOf(uint64_t seed) {
  RoundKeys keys = {};
  for (uint32_t round = 0; round < 10; ++round) {
    keys.low[round] = static_cast<uint32_t>(seed) + round * 0x9e3779b9u;
    keys.high[round] = static_cast<uint32_t>(seed >> 32) + round * 0xbb67ae85u;
  }
  return keys;
}
// RoundingBits with precomputed keys.
NIBBLE_LANES PhiloxWords<uint32_t> RoundingBits(const RandomStream& random, const RoundKeys& keys,
                                                uint64_t block) {
  PhiloxWords<uint32_t> words = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                  random.stream, random.step}};
  NIBBLE_UNROLL(10)
  for (int round = 0; round < 10; ++round) {
    PhiloxRound<uint32_t>(words, keys.low[round], keys.high[round]);
  }
  return words;
}

// What the first two rounds have in common for all blocks of a stream whose numbers have the same
// upper half: of their four products only two depend on the lower half.
struct alignas(16) PhiloxStart {
  uint32_t mix[4];
};
NIBBLE_LANES PhiloxStart PhiloxStartOf(const RandomStream& random, const RoundKeys& keys,
                                       uint32_t block_high) {
  PhiloxWords<uint32_t> words = {{0, block_high, random.stream, random.step}};
  PhiloxRound<uint32_t>(words, keys.low[0], keys.high[0]);
  const uint32_t step = words.word[2];  // without the lower half's product
  words.word[3] = 0;
  PhiloxWords<uint32_t> second = words;
  second.word[2] = 0;
  PhiloxRound<uint32_t>(second, keys.low[1], keys.high[1]);
  return {{step, second.word[0], second.word[2], second.word[3]}};
}
// RoundingBits of the block with this lower half.
NIBBLE_LANES PhiloxWords<uint32_t> RoundingBits(const PhiloxStart& start, const RoundKeys& keys,
                                                uint32_t block_low) {
  // The first round's words 2 and 3 and the second round, each without its products of words that
  // are the same for all blocks: those enter by exclusive or.
  PhiloxWords<uint32_t> first = {{block_low, 0, 0, start.mix[0]}};
  PhiloxRound<uint32_t>(first, 0u, 0u);
  PhiloxWords<uint32_t> words = {{0, start.mix[1], first.word[2], first.word[3]}};
  PhiloxRound<uint32_t>(words, 0u, start.mix[2]);
  words.word[3] = start.mix[3];
  NIBBLE_UNROLL(8)
  for (int round = 2; round < 10; ++round) {
    PhiloxRound<uint32_t>(words, keys.low[round], keys.high[round]);
  }
  return words;
}

// A block: values (BF16 or FP32, no NaN or infinity), the words of SignsOf… for elements 0 to 7 and
// 8 to 15, the factor and whether it is 0.
template <bool kStochastic>
NIBBLE_LANES BlockCodes EncodeBlock(const float (&v)[16], float factor, bool zero_scale,
                                    uint32_t signs0, uint32_t signs1,
                                    const PhiloxWords<uint32_t>& random) {
  const uint32_t sign_mask = zero_scale ? 0u : 0x88888888u;
  uint32_t low, high;
  if constexpr (kStochastic) {
    low = StochasticMagnitudes(v, factor, random.word[0], random.word[1]);
    high = StochasticMagnitudes(v + 8, factor, random.word[2], random.word[3]);
  } else {
    low = NearestMagnitudes(v, factor);
    high = NearestMagnitudes(v + 8, factor);
  }
  return {{low | (signs0 & sign_mask), high | (signs1 & sign_mask)}};
}

// One column of 16 rows of pairs of BF16 neighbours, passed through the Hadamard sums (without the
// norm) and rounded to BF16. `row`: [16] pairs (column, column + 1). The result is pairs split in
// the order that SignsOfSplit takes: split[4k + 0] = (8k, 8k + 2), [4k + 1] = (8k + 4, 8k + 6), [4k
// + 2] = (8k + 1, 8k + 3), ….
//
// Moving the norm 1/4 to the factor and the amax is exact: rounding to BF16 commutes with a power
// of two except below 2^-126, which RangeIsPlain makes harmless, and at overflow, which gives an
// infinite sum and sends the block to exact_block.h.
//
// `zero`: 0 that the compiler does not know, which keeps the two constants in registers: then the
// signs can be operands in constant memory.
template <int kSecond>
NIBBLE_LANES void LoadColumn(const uint32_t (&row)[16], const uint32_t* sign_bits, float (&v)[16],
                             uint32_t zero = 0) {
  const uint32_t shift = 65536u + zero;
  const uint32_t upper = 0xffff0000u + zero;
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) {
    // Adding the top bit flips it.
    v[i] = FromBits<float>(kSecond ? (row[i] & upper) ^ sign_bits[i]
                                   : MultiplyAdd(row[i], shift, sign_bits[i]));
  }
}
// Values as pairs of BF16 in that order.
NIBBLE_LANES void SplitPairs(const float (&v)[16], uint32_t (&split)[8]) {
  NIBBLE_UNROLL(2)
  for (int k = 0; k < 2; ++k) {
    split[4 * k + 0] = Bf16Pair(v[8 * k + 0], v[8 * k + 2]);
    split[4 * k + 1] = Bf16Pair(v[8 * k + 4], v[8 * k + 6]);
    split[4 * k + 2] = Bf16Pair(v[8 * k + 1], v[8 * k + 3]);
    split[4 * k + 3] = Bf16Pair(v[8 * k + 5], v[8 * k + 7]);
  }
}
NIBBLE_LANES void HadamardSums(float (&v)[16], uint32_t (&split)[8]) {
  constexpr uint32_t kNoSigns[16] = {};
  HadamardSumsTile16<float>(v, kNoSigns);
  SplitPairs(v, split);
}
// Restores element order from split pairs.
NIBBLE_LANES void UnpackSplit(const uint32_t (&split)[8], float (&v)[16]) {
  NIBBLE_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const int first = 8 * (j / 2) + 4 * (j % 2);
    const uint32_t even = split[4 * (j / 2) + j % 2];
    const uint32_t odd = split[4 * (j / 2) + 2 + j % 2];
    v[first + 0] = FromBits<float>(even << 16);
    v[first + 1] = FromBits<float>(odd << 16);
    v[first + 2] = UpperBf16(even);
    v[first + 3] = UpperBf16(odd);
  }
}

// BF16 operands of a block: code · scale, looked up bytewise in the eight possible results.
struct EmulationTable {
  uint32_t high[2];  // upper bytes of code · scale for codes 0..3 and 4..7
  uint32_t low[2];
};
// `pair`: the scale as BF16, twice.
NIBBLE_LANES EmulationTable EmulationTableOf(uint32_t pair) {
  const uint32_t p01 = MultiplyBf16Pairs(0x3f000000u, pair);  // (0, 0.5)
  const uint32_t p23 = MultiplyBf16Pairs(0x3fc03f80u, pair);  // (1, 1.5)
  const uint32_t p45 = MultiplyBf16Pairs(0x40404000u, pair);  // (2, 3)
  const uint32_t p67 = MultiplyBf16Pairs(0x40c04080u, pair);  // (4, 6)
  return {{Permute(p01, p23, 0x7531u), Permute(p45, p67, 0x7531u)},
          {Permute(p01, p23, 0x6420u), Permute(p45, p67, 0x6420u)}};
}
NIBBLE_LANES EmulationTable EmulationTableFor(uint32_t scale_code) {
  // An E4M3 code in the place of BF16's exponent and upper mantissa is its value times 2^-120,
  // subnormal codes too. Exact: an E4M3 value has 4 significant bits, a code 2.
  return EmulationTableOf(MultiplyBf16Pairs(scale_code * 0x00100010u, 0x7b807b80u));
}
// 8 codes to 4 pairs of BF16 in element order.
NIBBLE_LANES void Emulate(uint32_t codes, const EmulationTable& table, uint32_t (&pair)[4]) {
  NIBBLE_UNROLL(2)
  for (int h = 0; h < 2; ++h) {
    const uint32_t four = codes >> (16 * h);
    const uint32_t magnitudes = four & 0x7777u;
    const uint32_t low = Permute(table.low[0], table.low[1], magnitudes);
    // A selector with its sign bit set replicates the top bit of 0x80 over the byte: 0xff,
    // otherwise 0x80.
    const uint32_t signs = Permute(0x80808080u, 0x80808080u, four) * 128u;
    const uint32_t high =
        Select(0x80808080u, signs, Permute(table.high[0], table.high[1], magnitudes));
    pair[2 * h + 0] = Permute(low, high, 0x5140u);
    pair[2 * h + 1] = Permute(low, high, 0x7362u);
  }
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_BLOCK_ENCODE_H_

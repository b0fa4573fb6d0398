// Philox4x32-10 (Salmon et al., Random123): 128 random bits as a pure function of a 64-bit key and
// a 128-bit counter. The bits depend only on the position of the rounded element, never on time,
// thread or launch shape.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_PHILOX_H_
#define NIBBLE_KERNELS_FORMATS_PHILOX_H_

#include <cstdint>

#include "kernels/formats/lanes.h"

namespace nibble {

// U is uint32_t, or a vector of 64-bit lanes with the word in the lower half (see MultiplyWide);
// lanes are independent draws under one key.
template <class U>
struct PhiloxWords {
  U word[4];
};

template <class U, class Key>
NIBBLE_LANES void PhiloxRound(PhiloxWords<U>& c, Key key_low, Key key_high) {
  U high0, low0, high1, low1;
  MultiplyWide(c.word[0], 0xd2511f53u, high0, low0);
  MultiplyWide(c.word[2], 0xcd9e8d57u, high1, low1);
  c = {{high1 ^ c.word[1] ^ key_low, low1, high0 ^ c.word[3] ^ key_high, low0}};
}

template <class U>
NIBBLE_LANES PhiloxWords<U> Philox4x32(PhiloxWords<U> counter, uint32_t key_low,
                                       uint32_t key_high) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    PhiloxRound<U, uint32_t>(counter, key_low, key_high);
    key_low += 0x9e3779b9u;
    key_high += 0xbb67ae85u;
  }
  return counter;
}

// Identifies the draws of one copy of one tensor at one step; element indices are global (the
// unsharded tensor's, row-major in the copy being quantised), so the bits do not depend on the
// number of ranks.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t stream = 0;  // identifies the tensor and its copy
  uint32_t step = 0;
};

// The random bits of 16 consecutive elements; `block` is their first element's index divided by 16.
// Element e of the 16 uses byte e % 4 of word e / 4.
template <class U>
NIBBLE_LANES PhiloxWords<U> RoundingBits(const RandomStream& random, U block_low, U block_high) {
  const PhiloxWords<U> counter = {
      {block_low, block_high, SplatBits<U>(random.stream), SplatBits<U>(random.step)}};
  return Philox4x32<U>(counter, static_cast<uint32_t>(random.seed),
                       static_cast<uint32_t>(random.seed >> 32));
}

// The keys of the ten rounds, for many draws from one stream: vector code loads them at no cost,
// but would need a step each to compute and broadcast them.
struct RoundKeys {
  uint64_t low[10];
  uint64_t high[10];
};
NIBBLE_LANES RoundKeys RoundKeysOf(const RandomStream& random) {
  RoundKeys keys;
  uint32_t low = static_cast<uint32_t>(random.seed);
  uint32_t high = static_cast<uint32_t>(random.seed >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9e3779b9u, high += 0xbb67ae85u) {
    keys.low[round] = low;
    keys.high[round] = high;
  }
  return keys;
}

// Two sets of draws at once: the rounds of one wait for its multiplications, those of two overlap.
// `keys` are the stream's; lanes are 64 bits wide.
template <class U>
NIBBLE_LANES void RoundingBitsPair(const RandomStream& random, const RoundKeys& keys, U block_a,
                                   U block_b, PhiloxWords<U>& a, PhiloxWords<U>& b) {
  const U stream = U{} + random.stream;
  const U step = U{} + random.step;
  a = {{block_a, block_a >> 32, stream, step}};
  b = {{block_b, block_b >> 32, stream, step}};
  NIBBLE_UNROLL(10)
  for (int round = 0; round < 10; ++round) {
    PhiloxRound<U, uint64_t>(a, keys.low[round], keys.high[round]);
    PhiloxRound<U, uint64_t>(b, keys.low[round], keys.high[round]);
  }
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_PHILOX_H_

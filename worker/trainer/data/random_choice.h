// The random choices of the data code, each a pure function of the seed and an index: which
// documents are held out, and the order of the samples in an epoch.
//
// Thread-safety: immutable values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_RANDOM_CHOICE_H_
#define NIBBLE_WORKER_TRAINER_DATA_RANDOM_CHOICE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/formats/philox.h"

namespace nibble {

// What a draw is for: the last word of the Philox counter, so that draws under one seed are
// independent. Stochastic rounding has its step in that word, so the values are above any step that
// a run reaches.
enum class RandomDomain : uint32_t {
  kHoldOut = 0xda7a0001,
  kEpochKey = 0xda7a0002,
  kTokenizerSample = 0xda7a0003,
};

// 128 random bits, a pure function of the arguments.
inline PhiloxWords<uint32_t> Draw(RandomDomain domain, uint64_t seed, uint64_t index,
                                  uint32_t stream) {
  const PhiloxWords<uint32_t> counter = {{static_cast<uint32_t>(index),
                                          static_cast<uint32_t>(index >> 32), stream,
                                          static_cast<uint32_t>(domain)}};
  return Philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// The order of an epoch: a permutation of [0, size) that is computed, not stored, so that the
// sample at any position of any epoch is found in constant time.
//
// Cycle-walking over a Feistel network with Philox as its round function, on the smallest even
// number of bits that holds `size`: fewer than four steps on average.
class EpochPermutation {
 public:
  static constexpr uint64_t kMaxSize = uint64_t{1} << 62;

  // `stream` gives each data set its own order under one seed. `size` is in [1, kMaxSize].
  EpochPermutation(uint64_t size, uint64_t seed, uint32_t stream, uint64_t epoch);

  // The image of `index`, both in [0, size).
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t Encipher(uint64_t x) const;

  uint64_t size_;
  int half_bits_;
  PhiloxWords<uint32_t> key_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_RANDOM_CHOICE_H_

// The order of an epoch: a permutation of [0, size) that is computed, not stored, so that the
// sample at any place of any epoch is found without a look at the places before it.
//
// A Feistel network over the smallest even number of bits that holds `size`, with Philox as its
// round function, walks from an index to the next image below `size`: fewer than four steps on
// average.
//
// Ownership: a value. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_PERMUTATION_H_
#define NIBBLE_WORKER_TRAINER_DATA_PERMUTATION_H_

#include <cstdint>

#include "kernels/formats/philox.h"

namespace nibble {

class EpochPermutation {
 public:
  static constexpr uint64_t kMaxSize = uint64_t{1} << 62;

  // `stream` keeps apart the orders of several data sets under one seed. `size` is in
  // [1, kMaxSize].
  EpochPermutation(uint64_t size, uint64_t seed, uint32_t stream, uint64_t epoch);

  // Of an index in [0, size), in [0, size); each is the image of exactly one.
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t Encipher(uint64_t x) const;

  uint64_t size_;
  int half_bits_;
  PhiloxWords<uint32_t> key_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_PERMUTATION_H_

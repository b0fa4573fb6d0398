// The Philox draws of the data code, kept apart from all others under the same seed: the last word
// of the counter names what is drawn, where stochastic rounding has its step, so these lie above
// any step that a run reaches.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_RANDOM_DOMAIN_H_
#define NIBBLE_WORKER_TRAINER_DATA_RANDOM_DOMAIN_H_

#include <cstdint>

#include "kernels/formats/philox.h"

namespace nibble {

enum class RandomDomain : uint32_t {
  kHoldOut = 0xda7a0001,
  kEpochKey = 0xda7a0002,
  kTokenizerSample = 0xda7a0003,
};

// 128 bits that are a function of the arguments and nothing else.
inline PhiloxWords<uint32_t> Draw(RandomDomain domain, uint64_t seed, uint64_t index,
                                  uint32_t stream) {
  const PhiloxWords<uint32_t> counter = {{static_cast<uint32_t>(index),
                                          static_cast<uint32_t>(index >> 32), stream,
                                          static_cast<uint32_t>(domain)}};
  return Philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_RANDOM_DOMAIN_H_

#include "worker/trainer/data/random_choice.h"

#include <bit>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "kernels/formats/philox.h"

namespace nibble {

namespace {

// Four rounds make a permutation that is hard to distinguish from a random one with few queries;
// small domains, which are enumerated completely, need more.
constexpr uint32_t kRounds = 12;

int HalfBits(uint64_t size) {
  const int bits = std::bit_width(size - 1);  // 0 for a size of 1
  return bits <= 2 ? 1 : (bits + 1) / 2;
}

}  // namespace

EpochPermutation::EpochPermutation(uint64_t size, uint64_t seed, uint32_t stream, uint64_t epoch)
    : size_(size),
      half_bits_(HalfBits(size)),
      key_(Draw(RandomDomain::kEpochKey, seed, epoch, stream)) {}

uint64_t EpochPermutation::Encipher(uint64_t x) const {
  const uint32_t mask = (uint32_t{1} << half_bits_) - 1;
  uint32_t left = static_cast<uint32_t>(x >> half_bits_);
  uint32_t right = static_cast<uint32_t>(x) & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const PhiloxWords<uint32_t> counter = {{right, round, key_.word[2], key_.word[3]}};
    const uint32_t mixed = Philox4x32(counter, key_.word[0], key_.word[1]).word[0];
    const uint32_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return uint64_t{left} << half_bits_ | right;
}

uint64_t EpochPermutation::operator()(uint64_t index) const {
  // The walk stays on the cycle of `index`, so it ends at `index` at the latest.
  do {
    index = Encipher(index);
  } while (index >= size_);
  // Feistel rounds of two bits and more are even permutations, which would make orders of one
  // parity likelier; a transposition in every other epoch evens that out.
  const bool transpose = (key_.word[3] & 1) != 0;
  return transpose && size_ > 1 && index < 2 ? index ^ 1 : index;
}

}  // namespace nibble

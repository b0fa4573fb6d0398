// Byte-pair encoding: joins the symbols of a word, two neighbours at a time, by a list of merges.
// The same steps as Hugging Face's tokenizers take, so that the same tokens come out.
//
// Ownership: owns its merges. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BPE_H_
#define NIBBLE_WORKER_TRAINER_DATA_BPE_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace nibble {

class BytePairs {
 public:
  struct Merge {
    int32_t left, right;
    int32_t joined;
  };

  BytePairs() = default;
  // Earlier merges come first. Of two with equal sides the later one stands.
  explicit BytePairs(const std::vector<Merge>& merges);

  // Joins until no merge fits any two neighbours: always the earliest merge that does, of equal
  // ones the one furthest left.
  void Join(std::vector<int32_t>& symbols) const;

 private:
  struct Joined {
    int32_t rank = 0;
    int32_t symbol = 0;
  };
  const Joined* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Joined> merges_;  // by both sides
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BPE_H_

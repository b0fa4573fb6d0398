// Which documents of a corpus are kept from training, to validate on.
//
// A document is held out or not by its number alone, so that the choice needs nothing stored and
// the documents that follow change nothing. Copies of one text under two numbers are two documents.
//
// Ownership: a value. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_HOLD_OUT_H_
#define NIBBLE_WORKER_TRAINER_DATA_HOLD_OUT_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace nibble {

class HoldOut {
 public:
  // InvalidArgument unless `fraction` is in [0, 1). Each document is held out with this
  // probability, independently of the others.
  static absl::StatusOr<HoldOut> Create(uint64_t seed, double fraction);

  bool Contains(int64_t document) const;

 private:
  HoldOut(uint64_t seed, uint64_t threshold) : seed_(seed), threshold_(threshold) {}

  uint64_t seed_;
  uint64_t threshold_;  // of 2^64
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_HOLD_OUT_H_

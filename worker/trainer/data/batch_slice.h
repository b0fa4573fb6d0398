// Which sequences of a global batch a rank works on, and when.
//
// Rank r of R takes the r-th of R equal runs of the batch, and its micro-batch m of M the m-th of M
// equal runs of that: with n = global_sequences/(R·M), the sequences at places
// (r·M + m)·n … (r·M + m + 1)·n − 1. Reading ranks in order, and each rank's micro-batches in
// order, gives the global batch in order, whatever R and M are.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BATCH_SLICE_H_
#define NIBBLE_WORKER_TRAINER_DATA_BATCH_SLICE_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace nibble {

struct BatchSlice {
  int64_t step = 0;  // which global batch, from 0
  int64_t rank = 0;
  int64_t world = 1;
  int64_t micro = 0;  // of this rank's micro-batches
  int64_t micros = 1;
};

// Global indices first … first + count − 1: step · global_sequences plus places.
struct IndexRange {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// InvalidArgument naming the field, its value and its bound: global_sequences is a positive
// multiple of world · micros, rank is in [0, world), micro in [0, micros), and the step so small
// that its indices are below 2^62.
absl::StatusOr<IndexRange> SliceRange(int64_t global_sequences, const BatchSlice& slice);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BATCH_SLICE_H_

// Random clusters in any valid state, as a function of the seed.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_RANDOM_SNAPSHOT_TESTING_H_
#define NIBBLE_SERVER_SCHEDULER_RANDOM_SNAPSHOT_TESTING_H_

#include <cstdint>

#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

struct RandomShape {
  int workers = 8;  // at most, at least one
  int jobs = 16;    // at most
  int64_t now_ms = 0;
  bool fixed_counts = false;  // exactly these counts, with the proportions of a busy large cluster
};

Snapshot RandomSnapshot(uint64_t seed, const RandomShape& shape);

// The same entities in another order.
Snapshot Shuffled(Snapshot snapshot, uint64_t seed);

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_RANDOM_SNAPSHOT_TESTING_H_

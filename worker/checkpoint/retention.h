// Which checkpoints a store keeps.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_RETENTION_H_
#define NIBBLE_WORKER_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

// A checkpoint is kept if any of these keeps it, or if its step is pinned.
struct Retention {
  int64_t keep_last = 2;   // the checkpoints committed last; at least 1
  int64_t keep_every = 0;  // steps that are a multiple of this; 0: none for this reason
};

absl::Status CheckRetention(const Retention& retention);

// The committed checkpoints that go. `committed` is in the order of their serials; of several of
// one step only the last counts, the others go in any case.
std::vector<StoredDirectory> ToDelete(const std::vector<StoredDirectory>& committed,
                                      const std::set<int64_t>& pinned, const Retention& retention);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_RETENTION_H_

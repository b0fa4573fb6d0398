// The world sizes that a job allows: a list, or every size of a range.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_SIZES_H_
#define NIBBLE_SERVER_SCHEDULER_SIZES_H_

#include <algorithm>
#include <cstdint>

#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

inline int SmallestSize(const Job& job) {
  return job.sizes.empty() ? job.min_slots : job.sizes.front();
}

inline int LargestSize(const Job& job) {
  return job.sizes.empty() ? job.max_slots : job.sizes.back();
}

// The largest allowed size that is at most `bound`; 0 where all are larger.
inline int LargestSizeWithin(const Job& job, int64_t bound) {
  if (bound < SmallestSize(job)) return 0;
  if (job.sizes.empty()) return static_cast<int>(std::min<int64_t>(bound, job.max_slots));
  return *(std::upper_bound(job.sizes.begin(), job.sizes.end(), bound) - 1);
}

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_SIZES_H_

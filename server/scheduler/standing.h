// How jobs stand to their queue's quota. The quota of a queue belongs to its jobs by priority; of
// one priority to those that were started once, then by submission: an active job owns what it
// holds where that fits besides the owners ahead of it, and is on borrowed quota otherwise. So
// taking from borrowers never makes an owner of anybody else.
//
// Ownership: values. Thread-safety: a pure function of a world that nobody changes meanwhile.
#ifndef NIBBLE_SERVER_SCHEDULER_STANDING_H_
#define NIBBLE_SERVER_SCHEDULER_STANDING_H_

#include <cstdint>
#include <vector>

#include "server/scheduler/world.h"

namespace nibble::scheduler {

struct Standing {
  std::vector<int64_t> ahead;  // by job: what owners ahead of it in its queue hold
  std::vector<bool> owns;      // by active job: it is an owner
  std::vector<int64_t> owned;  // by queue: what its owners hold
};

Standing FindStanding(const World& world);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_STANDING_H_

// Elastic jobs take what nobody waits for: jobs that this plan starts begin larger, running jobs
// grow through a checkpoint when their last change is long enough ago.
//
// Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_GROW_H_
#define NIBBLE_SERVER_SCHEDULER_GROW_H_

#include <vector>

#include "server/scheduler/decisions.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {

// After the last pass, whose claims the world still holds. Says of jobs that could be larger why
// they are not.
std::vector<Remark> Grow(World& world);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_GROW_H_

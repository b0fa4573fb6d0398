// Jobs leave draining workers, through a checkpoint: those ahead of which nobody waits move to
// other free slots, also with a smaller size, and leave the spares of others alone; the rest stop
// and take their place in the line, where their earlier submission counts.
//
// Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_DRAIN_H_
#define NIBBLE_SERVER_SCHEDULER_DRAIN_H_

#include <vector>

#include "server/scheduler/decisions.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {

// Before the first pass, so that all who wait see what is freed. Says who stays, and why.
std::vector<Remark> Drain(World& world);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_DRAIN_H_

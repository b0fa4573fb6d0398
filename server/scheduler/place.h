// Where a gang goes, given what is free. In this order: the workers with the most preferred labels
// that can take it whole (a mixed gang runs at the pace of its slowest worker, so a lesser kind
// alone comes before a mixture); fewest workers; fewest racks; the tightest fit, so that whole
// workers and racks stay free for others; names. Racks of a gang that fits in none are chosen
// greedily, fullest first.
//
// Thread-safety: pure functions of an index that nobody changes meanwhile.
#ifndef NIBBLE_SERVER_SCHEDULER_PLACE_H_
#define NIBBLE_SERVER_SCHEDULER_PLACE_H_

#include <cstdint>
#include <span>

#include "server/scheduler/cluster.h"
#include "server/scheduler/eligible.h"
#include "server/scheduler/free_index.h"

namespace nibble::scheduler {

// Free slots on the kinds.
int64_t FreeOn(const FreeIndex& index, const EligibleKinds& kinds);

// `count` (> 0) slots ascending by node; none where fewer are free.
NodePlacement Place(const FreeIndex& index, const EligibleKinds& kinds, int count);

// The fewest nodes that hold `count` slots, where counts[f] nodes have f free slots and together
// they have enough.
int FewestNodes(std::span<const int> counts, int64_t count);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PLACE_H_

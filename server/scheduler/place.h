// Which kinds of workers a job can use, and where a gang is placed given the free slots. Placement
// prefers, in this order: the workers with the most preferred labels that can take the whole gang
// (a mixed gang runs at the pace of its slowest worker, so a lesser kind alone comes before a
// mixture); fewest workers; fewest racks; the tightest fit, which keeps whole workers and racks
// free for others; names. A gang that fits in no rack takes racks greedily, fullest first.
//
// Thread-safety: pure functions of an index that does not change during the call; EligibleTable:
// none.
#ifndef NIBBLE_SERVER_SCHEDULER_PLACE_H_
#define NIBBLE_SERVER_SCHEDULER_PLACE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/cluster.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

// A kind that has every required label.
struct EligibleKind {
  int kind = 0;
  int preferred = 0;    // number of preferred labels it has
  int unrequested = 0;  // number of its labels that are neither required nor preferred
};

// Best first: most preferred labels, then fewest unrequested ones, which leaves special hardware to
// jobs that request it, then by kind.
using EligibleKinds = std::vector<EligibleKind>;

EligibleKinds FindEligibleKinds(const Cluster& cluster, const Job& job);

// Jobs with the same required and preferred labels share one entry.
class EligibleTable {
 public:
  explicit EligibleTable(const Cluster& cluster) : cluster_(cluster) {}

  // A stable number for the job's labels.
  int IdOf(const Job& job);
  // Valid until the next IdOf().
  const EligibleKinds& operator[](int id) const { return kinds_[id]; }
  int size() const { return static_cast<int>(kinds_.size()); }

 private:
  const Cluster& cluster_;
  std::string key_;
  absl::flat_hash_map<std::string, int> ids_;
  std::vector<EligibleKinds> kinds_;
};

// Free slots on the kinds.
int64_t FreeOn(const FreeIndex& index, const EligibleKinds& kinds);

// `count` (> 0) slots, ascending by node; empty if fewer are free.
NodePlacement Place(const FreeIndex& index, const EligibleKinds& kinds, int count);

// The smallest number of nodes with `count` free slots in total. counts[f]: nodes with f free
// slots; their sum must suffice.
int FewestNodes(std::span<const int> counts, int64_t count);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PLACE_H_

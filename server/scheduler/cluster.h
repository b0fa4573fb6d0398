// The workers of a snapshot, laid out for searching: workers with the same labels are of one kind;
// workers of one kind in one rack form a pool; nodes are numbered so that kinds and pools are
// ranges. The numbering depends on names alone, not on the order of the snapshot.
//
// Ownership: points into the snapshot, which must outlive it. Thread-safety: immutable.
#ifndef NIBBLE_SERVER_SCHEDULER_CLUSTER_H_
#define NIBBLE_SERVER_SCHEDULER_CLUSTER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

// `count` slots of node `node`.
struct NodeSlots {
  int node = 0;
  int count = 0;
  friend bool operator==(const NodeSlots&, const NodeSlots&) = default;
};
using NodePlacement = std::vector<NodeSlots>;  // each node once

class Cluster {
 public:
  struct Node {
    const Worker* worker = nullptr;
    int kind = 0;
    int pool = 0;
    int capacity = 0;  // slots for new work: 0 unless the worker is ready
  };
  struct Pool {
    int rack = 0;
    int begin = 0, end = 0;  // nodes
  };
  struct Kind {
    std::vector<std::string_view> labels;  // ascending
    int begin = 0, end = 0;                // nodes
    int pool_begin = 0, pool_end = 0;      // pools, ascending by rack
    int64_t capacity = 0;                  // slots of ready workers
    int64_t withheld = 0;                  // slots of cordoned, draining and lost workers
  };

  explicit Cluster(const std::vector<Worker>& workers);

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Pool>& pools() const { return pools_; }
  const std::vector<Kind>& kinds() const { return kinds_; }
  int max_slots() const { return max_slots_; }  // of the largest worker
  const std::string& name(int node) const { return nodes_[node].worker->name; }
  // -1: no such worker.
  int FindNode(std::string_view worker) const;
  // Ascending by worker's name.
  Placement Named(const NodePlacement& placement) const;

 private:
  std::vector<Node> nodes_;
  std::vector<Pool> pools_;
  std::vector<Kind> kinds_;
  absl::flat_hash_map<std::string_view, int> by_name_;
  int max_slots_ = 0;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_CLUSTER_H_

// The workers of a snapshot, laid out for searching (Cluster), and their free slots (FreeIndex).
//
// Ownership: Cluster points into the snapshot, FreeIndex to the cluster; both must outlive it.
// Thread-safety: Cluster is immutable; FreeIndex has none, one pass owns it.
#ifndef NIBBLE_SERVER_SCHEDULER_CLUSTER_H_
#define NIBBLE_SERVER_SCHEDULER_CLUSTER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

// Workers with the same labels are of one kind; workers of one kind in one rack form a pool. Nodes
// are numbered so that kinds and pools are contiguous. The numbering depends only on names, not on
// the order of the snapshot.
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

// Free slots per node, by node number: finds which nodes of a kind or pool have exactly f free
// slots, their count, and the first of them, without a scan. Changing one node updates a few
// counters and two bits.
class FreeIndex {
 public:
  explicit FreeIndex(const Cluster& cluster);  // initially nothing is free

  const Cluster& cluster() const { return *cluster_; }
  int max_free() const { return max_free_; }

  int free(int node) const { return free_[node]; }
  void Set(int node, int free);  // 0 to max_free(), the slots of the largest worker

  int64_t KindFree(int kind) const { return kind_free_[kind]; }
  int KindNodes(int kind) const { return kind_nodes_[kind]; }  // with any free slot
  int64_t PoolFree(int pool) const { return pool_free_[pool]; }
  // counts[f]: nodes with exactly f free slots, f = 0..max_free(); counts[0] is not kept.
  std::span<const int> KindCounts(int kind) const { return Row(kind_counts_, kind); }
  std::span<const int> PoolCounts(int pool) const { return Row(pool_counts_, pool); }

  // The first node of [begin, end) with exactly `free` (> 0) slots; -1 if none has.
  int Find(int begin, int end, int free) const;

 private:
  std::span<const int> Row(const std::vector<int>& counts, int row) const {
    return {counts.data() + static_cast<size_t>(row) * (max_free_ + 1),
            static_cast<size_t>(max_free_) + 1};
  }
  void Count(int node, int free, int by);

  const Cluster* cluster_;
  int max_free_;
  size_t words_;                // of one bitmap
  std::vector<int> free_;       // [nodes]
  std::vector<uint64_t> bits_;  // [max_free + 1, words]: bit n of row f: node n has f free
  std::vector<int> kind_counts_, pool_counts_;
  std::vector<int64_t> kind_free_, pool_free_;
  std::vector<int> kind_nodes_;
};

// Changes the free slots of some nodes; its destructor restores them.
class ChangedForNow {
 public:
  explicit ChangedForNow(FreeIndex& index) : index_(index) {}
  ~ChangedForNow() {
    for (auto at = before_.rbegin(); at != before_.rend(); ++at) index_.Set(at->first, at->second);
  }
  ChangedForNow(const ChangedForNow&) = delete;
  ChangedForNow& operator=(const ChangedForNow&) = delete;

  void Set(int node, int free) {
    before_.emplace_back(node, index_.free(node));
    index_.Set(node, free);
  }

 private:
  FreeIndex& index_;
  std::vector<std::pair<int, int>> before_;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_CLUSTER_H_

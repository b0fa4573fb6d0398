// Free slots per node, indexed by how many: which nodes of a kind or a pool have exactly f free,
// how many they are, and the first of them, without looking at the others. A change of one node
// costs a few counters and two bits.
//
// Ownership: values; refers to the cluster, which must outlive it. Thread-safety: none; one pass
// owns it.
#ifndef NIBBLE_SERVER_SCHEDULER_FREE_INDEX_H_
#define NIBBLE_SERVER_SCHEDULER_FREE_INDEX_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "server/scheduler/cluster.h"

namespace nibble::scheduler {

class FreeIndex {
 public:
  explicit FreeIndex(const Cluster& cluster);  // nothing is free

  const Cluster& cluster() const { return *cluster_; }
  int max_free() const { return max_free_; }

  int free(int node) const { return free_[node]; }
  void Set(int node, int free);  // 0 to max_free(), which is the largest worker's slots

  int64_t KindFree(int kind) const { return kind_free_[kind]; }
  int KindNodes(int kind) const { return kind_nodes_[kind]; }  // with any free slot
  int64_t PoolFree(int pool) const { return pool_free_[pool]; }
  // counts[f]: nodes with exactly f free slots, f = 0..max_free(); counts[0] is not kept.
  std::span<const int> KindCounts(int kind) const { return Row(kind_counts_, kind); }
  std::span<const int> PoolCounts(int pool) const { return Row(pool_counts_, pool); }

  // The first node of [begin, end) with exactly `free` (> 0) slots; -1 where none has.
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

// Changes the free slots of some nodes until it goes out of scope.
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

#endif  // NIBBLE_SERVER_SCHEDULER_FREE_INDEX_H_

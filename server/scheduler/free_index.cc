#include "server/scheduler/free_index.h"

#include <bit>

namespace nibble::scheduler {

FreeIndex::FreeIndex(const Cluster& cluster)
    : cluster_(&cluster),
      max_free_(cluster.max_slots()),
      words_((cluster.nodes().size() + 63) / 64),
      free_(cluster.nodes().size(), 0),
      bits_(words_ * (max_free_ + 1), 0),
      kind_counts_(cluster.kinds().size() * (max_free_ + 1), 0),
      pool_counts_(cluster.pools().size() * (max_free_ + 1), 0),
      kind_free_(cluster.kinds().size(), 0),
      pool_free_(cluster.pools().size(), 0),
      kind_nodes_(cluster.kinds().size(), 0) {}

void FreeIndex::Count(int node, int free, int by) {
  if (free == 0) return;
  const Cluster::Node& at = cluster_->nodes()[node];
  bits_[words_ * free + node / 64] ^= uint64_t{1} << (node % 64);
  kind_counts_[static_cast<size_t>(at.kind) * (max_free_ + 1) + free] += by;
  pool_counts_[static_cast<size_t>(at.pool) * (max_free_ + 1) + free] += by;
  kind_free_[at.kind] += by * free;
  pool_free_[at.pool] += by * free;
  kind_nodes_[at.kind] += by;
}

void FreeIndex::Set(int node, int free) {
  if (free == free_[node]) return;
  Count(node, free_[node], -1);
  free_[node] = free;
  Count(node, free, 1);
}

int FreeIndex::Find(int begin, int end, int free) const {
  if (begin >= end) return -1;
  const uint64_t* row = bits_.data() + words_ * free;
  size_t word = begin / 64;
  uint64_t bits = row[word] & (~uint64_t{0} << (begin % 64));
  const size_t last = (end - 1) / 64;
  while (bits == 0) {
    if (word == last) return -1;
    bits = row[++word];
  }
  const int node = static_cast<int>(word * 64) + std::countr_zero(bits);
  return node < end ? node : -1;
}

}  // namespace nibble::scheduler

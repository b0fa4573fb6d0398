#include "server/scheduler/cluster.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

namespace nibble::scheduler {
namespace {

// Numbers values in the order of their first use; Ranks() then renumbers them in ascending order.
class Interned {
 public:
  int Add(const std::string& value) {
    const auto [at, added] = ids_.try_emplace(value, static_cast<int>(ids_.size()));
    return at->second;
  }
  std::vector<int> Ranks() const {
    std::vector<std::pair<std::string_view, int>> sorted(ids_.begin(), ids_.end());
    std::sort(sorted.begin(), sorted.end());
    std::vector<int> ranks(sorted.size());
    for (size_t i = 0; i < sorted.size(); ++i) ranks[sorted[i].second] = static_cast<int>(i);
    return ranks;
  }

 private:
  absl::flat_hash_map<std::string, int> ids_;
};

std::vector<std::string_view> SortedLabels(const Worker& worker) {
  std::vector<std::string_view> labels(worker.labels.begin(), worker.labels.end());
  std::sort(labels.begin(), labels.end());
  labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
  return labels;
}

// Equal only for equal sets of labels: lengths separate the labels, whatever characters they
// contain.
void JoinLabels(const Worker& worker, std::string& key) {
  key.clear();
  const auto append = [&key](std::string_view label) {
    key.append(std::to_string(label.size())).append(1, ':').append(label).append(1, '\n');
  };
  const bool ascending = std::adjacent_find(worker.labels.begin(), worker.labels.end(),
                                            std::greater_equal<>()) == worker.labels.end();
  if (ascending) {
    for (const std::string& label : worker.labels) append(label);
  } else {
    for (std::string_view label : SortedLabels(worker)) append(label);
  }
}

struct FreePlace {
  int kind, rack;
  const Worker* worker;
};

}  // namespace

Cluster::Cluster(const std::vector<Worker>& workers) {
  Interned kinds, racks;
  std::vector<FreePlace> places;
  places.reserve(workers.size());
  std::string key;
  for (const Worker& worker : workers) {
    JoinLabels(worker, key);
    places.push_back({kinds.Add(key), racks.Add(worker.rack), &worker});
  }
  const std::vector<int> kind_rank = kinds.Ranks();
  const std::vector<int> rack_rank = racks.Ranks();
  for (FreePlace& place : places) {
    place.kind = kind_rank[place.kind];
    place.rack = rack_rank[place.rack];
  }
  std::sort(places.begin(), places.end(), [](const FreePlace& a, const FreePlace& b) {
    return std::tie(a.kind, a.rack, a.worker->name) < std::tie(b.kind, b.rack, b.worker->name);
  });

  nodes_.reserve(places.size());
  by_name_.reserve(places.size());
  for (const FreePlace& place : places) {
    const int node = static_cast<int>(nodes_.size());
    if (kinds_.empty() || place.kind != static_cast<int>(kinds_.size()) - 1) {
      Kind kind;
      kind.labels = SortedLabels(*place.worker);
      kind.begin = node;
      kind.pool_begin = static_cast<int>(pools_.size());
      kind.pool_end = kind.pool_begin;
      kinds_.push_back(std::move(kind));
    }
    Kind& kind = kinds_.back();
    if (kind.pool_end == kind.pool_begin || pools_.back().rack != place.rack) {
      pools_.push_back({.rack = place.rack, .begin = node});
      kind.pool_end = static_cast<int>(pools_.size());
    }
    const bool ready = place.worker->state == WorkerState::kReady;
    const int slots = place.worker->slots;
    nodes_.push_back({.worker = place.worker,
                      .kind = place.kind,
                      .pool = kind.pool_end - 1,
                      .capacity = ready ? slots : 0});
    pools_.back().end = kind.end = node + 1;
    (ready ? kind.capacity : kind.withheld) += slots;
    max_slots_ = std::max(max_slots_, slots);
    by_name_.emplace(place.worker->name, node);
  }
}

int Cluster::FindNode(std::string_view worker) const {
  const auto at = by_name_.find(worker);
  return at == by_name_.end() ? -1 : at->second;
}

Placement Cluster::Named(const NodePlacement& placement) const {
  Placement named;
  named.reserve(placement.size());
  for (const NodeSlots& on : placement) named.push_back({name(on.node), on.count});
  std::sort(named.begin(), named.end(),
            [](const SlotsOn& a, const SlotsOn& b) { return a.worker < b.worker; });
  return named;
}

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

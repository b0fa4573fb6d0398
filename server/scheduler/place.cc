#include "server/scheduler/place.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace nibble::scheduler {
namespace {

bool Has(const std::vector<std::string_view>& labels, const std::string& label) {
  return std::binary_search(labels.begin(), labels.end(), std::string_view(label));
}

int Contains(const std::vector<std::string>& labels, std::string_view label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

void AppendLabels(const std::vector<std::string>& labels, std::string& key) {
  for (const std::string& label : labels) {
    key.append(std::to_string(label.size())).append(1, ':').append(label);
  }
  key.append(1, ';');
}

using Counts = std::vector<int>;

void AddCounts(std::span<const int> from, Counts& to) {
  for (size_t f = 1; f < from.size(); ++f) to[f] += from[f];
}

// The nodes of a gang: nodes[f] nodes with f free slots, all taken in full except one with
// `last_free` free slots, of which `last_count` are taken.
struct Profile {
  Counts nodes;
  int last_free = 0;
  int last_count = 0;
};

// The fullest nodes in full, then the tightest one that takes the remainder.
Profile MakeProfile(std::span<const int> counts, int64_t count) {
  Profile profile{.nodes = Counts(counts.size(), 0)};
  for (int f = static_cast<int>(counts.size()) - 1; f > 0 && count > 0; --f) {
    const int64_t whole = std::min<int64_t>(counts[f], count / f);
    profile.nodes[f] += static_cast<int>(whole);
    count -= whole * f;
    if (count == 0 || counts[f] == whole) continue;
    int tightest = static_cast<int>(count);
    while (counts[tightest] - profile.nodes[tightest] <= 0) ++tightest;
    ++profile.nodes[tightest];
    profile.last_free = tightest;
    profile.last_count = static_cast<int>(count);
    count = 0;
  }
  return profile;
}

// The pools of one rack, of the kinds under consideration.
struct RackPools {
  int rack = 0;
  std::vector<int> pools;
};

class Placer {
 public:
  Placer(const FreeIndex& index, std::span<const EligibleKind> kinds, int count)
      : index_(index), kinds_(kinds), count_(count) {}

  NodePlacement Run() {
    Counts all(index_.max_free() + 1, 0);
    for (const EligibleKind& kind : kinds_) AddCounts(index_.KindCounts(kind.kind), all);
    const int fewest = FewestNodes(all, count_);
    // A single kind, if that needs no more nodes.
    for (const EligibleKind& kind : kinds_) {
      if (kinds_.size() == 1 || index_.KindFree(kind.kind) < count_) continue;
      const std::span<const int> own = index_.KindCounts(kind.kind);
      if (FewestNodes(own, count_) != fewest) continue;
      kinds_ = {&kind, 1};
      all.assign(own.begin(), own.end());
      break;
    }
    if (fewest == 1) return OnOneNode(all);
    return OnRacks(all, fewest);
  }

 private:
  const Cluster& cluster() const { return index_.cluster(); }

  NodePlacement OnOneNode(const Counts& all) const {
    int tightest = count_;
    while (all[tightest] == 0) ++tightest;
    for (const EligibleKind& kind : kinds_) {
      const Cluster::Kind& range = cluster().kinds()[kind.kind];
      const int node = index_.Find(range.begin, range.end, tightest);
      if (node >= 0) return {{node, count_}};
    }
    return {};
  }

  NodePlacement OnRacks(const Counts& all, int fewest) {
    const std::vector<std::pair<int, int>> pools = PoolsByRack();
    // The rack that takes the whole gang on the fewest nodes, then with the fewest free slots left.
    Counts counts(all.size());
    std::tuple<int, int64_t> best;
    size_t best_begin = 0, best_end = 0;
    for (size_t begin = 0, end = 0; begin < pools.size(); begin = end) {
      int64_t free = 0;
      for (end = begin; end < pools.size() && pools[end].first == pools[begin].first; ++end) {
        free += index_.PoolFree(pools[end].second);
      }
      if (free < count_) continue;
      std::fill(counts.begin(), counts.end(), 0);
      for (size_t i = begin; i < end; ++i) AddCounts(index_.PoolCounts(pools[i].second), counts);
      const std::tuple<int, int64_t> cost{FewestNodes(counts, count_), free};
      if (best_end > 0 && cost >= best) continue;
      best = cost;
      best_begin = begin;
      best_end = end;
    }
    if (best_end > 0 && std::get<0>(best) == fewest) {
      std::fill(counts.begin(), counts.end(), 0);
      for (size_t i = best_begin; i < best_end; ++i) {
        AddCounts(index_.PoolCounts(pools[i].second), counts);
      }
      return Take(MakeProfile(counts, count_), {pools.data() + best_begin, best_end - best_begin});
    }
    const Profile profile = MakeProfile(all, count_);
    return Take(profile, FullestFirst(profile, pools));
  }

  // (rack, pool), ascending.
  std::vector<std::pair<int, int>> PoolsByRack() const {
    std::vector<std::pair<int, int>> pools;
    for (const EligibleKind& kind : kinds_) {
      const Cluster::Kind& range = cluster().kinds()[kind.kind];
      for (int pool = range.pool_begin; pool < range.pool_end; ++pool) {
        if (index_.PoolFree(pool) > 0) pools.emplace_back(cluster().pools()[pool].rack, pool);
      }
    }
    if (kinds_.size() > 1) std::sort(pools.begin(), pools.end());
    return pools;
  }

  // Reorders the pools: racks that can take more of the profile come first.
  std::vector<std::pair<int, int>> FullestFirst(
      const Profile& profile, const std::vector<std::pair<int, int>>& pools) const {
    struct RackShare {
      int64_t slots;
      size_t begin, end;
    };
    std::vector<RackShare> shares;
    Counts counts(profile.nodes.size());
    for (size_t begin = 0, end = 0; begin < pools.size(); begin = end) {
      std::fill(counts.begin(), counts.end(), 0);
      for (end = begin; end < pools.size() && pools[end].first == pools[begin].first; ++end) {
        AddCounts(index_.PoolCounts(pools[end].second), counts);
      }
      int64_t slots = 0;
      for (size_t f = 1; f < counts.size(); ++f) {
        slots += static_cast<int64_t>(std::min(counts[f], profile.nodes[f])) * f;
      }
      shares.push_back({slots, begin, end});
    }
    std::sort(shares.begin(), shares.end(), [](const RackShare& a, const RackShare& b) {
      return std::tie(b.slots, a.begin) < std::tie(a.slots, b.begin);
    });
    std::vector<std::pair<int, int>> ordered;
    ordered.reserve(pools.size());
    for (const RackShare& share : shares) {
      ordered.insert(ordered.end(), pools.begin() + share.begin, pools.begin() + share.end);
    }
    return ordered;
  }

  NodePlacement Take(Profile profile, std::span<const std::pair<int, int>> pools) const {
    NodePlacement taken;
    for (const auto& [rack, pool] : pools) {
      const Cluster::Pool& range = cluster().pools()[pool];
      const std::span<const int> counts = index_.PoolCounts(pool);
      for (int f = index_.max_free(); f > 0; --f) {
        if (counts[f] == 0) continue;
        for (int node = range.begin - 1; profile.nodes[f] > 0; --profile.nodes[f]) {
          node = index_.Find(node + 1, range.end, f);
          if (node < 0) break;
          const bool last = f == profile.last_free && profile.nodes[f] == 1;
          taken.push_back({node, last ? profile.last_count : f});
        }
      }
    }
    std::sort(taken.begin(), taken.end(),
              [](const NodeSlots& a, const NodeSlots& b) { return a.node < b.node; });
    return taken;
  }

  const FreeIndex& index_;
  std::span<const EligibleKind> kinds_;
  const int count_;
};

}  // namespace

EligibleKinds FindEligibleKinds(const Cluster& cluster, const Job& job) {
  EligibleKinds eligible;
  for (size_t k = 0; k < cluster.kinds().size(); ++k) {
    const std::vector<std::string_view>& labels = cluster.kinds()[k].labels;
    const auto has = [&labels](const std::string& label) { return Has(labels, label); };
    if (!std::all_of(job.required.begin(), job.required.end(), has)) continue;
    EligibleKind kind{.kind = static_cast<int>(k)};
    kind.preferred =
        static_cast<int>(std::count_if(job.preferred.begin(), job.preferred.end(), has));
    kind.unrequested = static_cast<int>(
        std::count_if(labels.begin(), labels.end(), [&job](std::string_view label) {
          return !Contains(job.required, label) && !Contains(job.preferred, label);
        }));
    eligible.push_back(kind);
  }
  std::sort(eligible.begin(), eligible.end(), [](const EligibleKind& a, const EligibleKind& b) {
    return std::tie(b.preferred, a.unrequested, a.kind) <
           std::tie(a.preferred, b.unrequested, b.kind);
  });
  return eligible;
}

int EligibleTable::IdOf(const Job& job) {
  key_.clear();
  AppendLabels(job.required, key_);
  AppendLabels(job.preferred, key_);
  const auto [at, added] = ids_.try_emplace(key_, static_cast<int>(kinds_.size()));
  if (added) kinds_.push_back(FindEligibleKinds(cluster_, job));
  return at->second;
}

int64_t FreeOn(const FreeIndex& index, const EligibleKinds& kinds) {
  int64_t free = 0;
  for (const EligibleKind& kind : kinds) free += index.KindFree(kind.kind);
  return free;
}

int FewestNodes(std::span<const int> counts, int64_t count) {
  int64_t nodes = 0;
  for (int f = static_cast<int>(counts.size()) - 1; f > 0 && count > 0; --f) {
    const int64_t taken = std::min<int64_t>(counts[f], (count + f - 1) / f);
    nodes += taken;
    count -= taken * f;
  }
  return static_cast<int>(nodes);
}

NodePlacement Place(const FreeIndex& index, const EligibleKinds& kinds, int count) {
  if (FreeOn(index, kinds) < count) return {};
  // A single level of preference, best first.
  for (size_t begin = 0, end = 0; begin < kinds.size(); begin = end) {
    int64_t free = 0;
    for (end = begin; end < kinds.size() && kinds[end].preferred == kinds[begin].preferred; ++end) {
      free += index.KindFree(kinds[end].kind);
    }
    if (free >= count) return Placer(index, {kinds.data() + begin, end - begin}, count).Run();
  }
  // The best levels together.
  int64_t free = 0;
  for (size_t end = 0; end < kinds.size(); ++end) {
    free += index.KindFree(kinds[end].kind);
    if (free >= count) return Placer(index, {kinds.data(), end + 1}, count).Run();
  }
  return {};
}

}  // namespace nibble::scheduler

#include "server/controller/slot_choice.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace nibble {
namespace {

// A daemon describes no more; the search is cubic.
constexpr size_t kMostSlots = 64;
// Above the sum of all lesser closenesses of that many slots.
constexpr int64_t kOverNvLink = 100'000;

int64_t ClosenessOf(const v1::SlotLink& link) {
  switch (link.path()) {
    case v1::CARD_PATH_NVLINK:
      return kOverNvLink + std::clamp(link.nvlinks(), 0, 99);
    case v1::CARD_PATH_BOARD:
      return 7;
    case v1::CARD_PATH_SWITCH:
      return 6;
    case v1::CARD_PATH_SWITCHES:
      return 5;
    case v1::CARD_PATH_BRIDGE:
      return 4;
    case v1::CARD_PATH_NODE:
      return 3;
    default:
      return 0;
  }
}

// Closeness of each pair of `free`, by their indices.
using Closeness = std::vector<std::vector<int64_t>>;

Closeness ClosenessOfAll(const v1::Topology& topology, const std::vector<int32_t>& free) {
  Closeness close(free.size(), std::vector<int64_t>(free.size()));
  const auto index = [&free](int32_t slot) -> std::optional<size_t> {
    const auto at = std::lower_bound(free.begin(), free.end(), slot);
    if (at == free.end() || *at != slot) return std::nullopt;
    return static_cast<size_t>(at - free.begin());
  };
  for (size_t a = 0; a < free.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const int32_t node = topology.slots(free[a]).numa_node();
      if (node >= 0 && node == topology.slots(free[b]).numa_node()) close[a][b] = close[b][a] = 1;
    }
  }
  for (const v1::SlotLink& link : topology.links()) {
    const std::optional<size_t> a = index(link.slot());
    const std::optional<size_t> b = index(link.other());
    if (!a.has_value() || !b.has_value() || *a == *b) continue;
    close[*a][*b] += ClosenessOf(link);
    close[*b][*a] = close[*a][*b];
  }
  return close;
}

struct SlotSet {
  std::vector<size_t> taken;  // ascending indices
  int64_t within = 0;         // closeness of all pairs of them
  int64_t across = 0;         // of them to those that are left

  bool BetterThan(const SlotSet& other) const {
    return std::tie(other.within, across, taken) < std::tie(within, other.across, other.taken);
  }
};

// Adds the slot that is closest to those taken, until there are `count`.
SlotSet GrowFrom(size_t first, size_t count, const Closeness& close) {
  SlotSet choice;
  std::vector<int64_t> to_taken(close.size());
  std::vector<int64_t> to_all(close.size());
  std::vector<bool> taken(close.size());
  for (size_t i = 0; i < close.size(); ++i) {
    for (size_t j = 0; j < close.size(); ++j) to_all[i] += close[i][j];
  }
  for (size_t next = first; choice.taken.size() < count;) {
    taken[next] = true;
    choice.taken.push_back(next);
    choice.within += to_taken[next];
    choice.across += to_all[next] - 2 * to_taken[next];
    for (size_t i = 0; i < close.size(); ++i) to_taken[i] += close[i][next];
    std::optional<size_t> best;
    for (size_t i = 0; i < close.size(); ++i) {
      if (taken[i]) continue;
      // Of equally close ones, the one with the fewest close slots elsewhere.
      const auto rank = [&](size_t at) { return std::tuple(-to_taken[at], to_all[at]); };
      if (!best.has_value() || rank(i) < rank(*best)) best = i;
    }
    if (!best.has_value()) break;
    next = *best;
  }
  std::sort(choice.taken.begin(), choice.taken.end());
  return choice;
}

}  // namespace

std::vector<int32_t> CloseSlots(const v1::Topology& topology, const std::vector<int32_t>& free,
                                size_t count) {
  const std::vector<int32_t> first(free.begin(), free.begin() + static_cast<int64_t>(count));
  if (count == 0 || count == free.size() || free.size() > kMostSlots || free.front() < 0 ||
      free.back() >= topology.slots_size()) {
    return first;
  }
  const Closeness close = ClosenessOfAll(topology, free);
  std::optional<SlotSet> best;
  for (size_t from = 0; from < free.size(); ++from) {
    SlotSet choice = GrowFrom(from, count, close);
    if (!best.has_value() || choice.BetterThan(*best)) best = std::move(choice);
  }
  std::vector<int32_t> slots;
  for (const size_t at : best->taken) slots.push_back(free[at]);
  return slots;
}

}  // namespace nibble

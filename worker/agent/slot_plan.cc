#include "worker/agent/slot_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Index of the node of each slot; -1: unknown or several.
std::vector<int> NodesOfSlots(const std::vector<HostNode>& nodes, const std::vector<Card>& cards,
                              const std::vector<int>& card_nodes, int32_t slots) {
  const auto count = static_cast<int32_t>(nodes.size());
  std::vector<int> chosen;
  for (int32_t slot = 0; slot < slots; ++slot) {
    if (count == 1) {
      chosen.push_back(0);  // a host with one node may not name it
    } else if (cards.empty()) {
      chosen.push_back(slots < count ? -1 : static_cast<int>(int64_t{slot} * count / slots));
    } else {
      const int number = card_nodes[static_cast<size_t>(slot)];
      const auto at = std::find_if(nodes.begin(), nodes.end(), [number](const HostNode& node) {
        return node.number == number;
      });
      chosen.push_back(at == nodes.end() ? -1 : static_cast<int>(at - nodes.begin()));
    }
  }
  return chosen;
}

// The `part`-th of `parts` shares of a node's cores.
std::vector<int> ShareOf(const HostNode& node, int64_t part, int64_t parts) {
  const auto cores = static_cast<int64_t>(node.cores.size());
  std::vector<int> threads;
  for (int64_t core = part * cores / parts; core < (part + 1) * cores / parts; ++core) {
    const std::vector<int>& own = node.cores[static_cast<size_t>(core)];
    threads.insert(threads.end(), own.begin(), own.end());
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

void Describe(const std::vector<HostNode>& nodes, const std::vector<Card>& cards,
              const std::vector<int>& of_slots, SlotPlan& plan) {
  for (const HostNode& node : nodes) {
    v1::NumaNode& described = *plan.topology.add_nodes();
    described.set_node(node.number);
    described.set_cores(CpuListText(node.Threads()));
  }
  for (size_t slot = 0; slot < plan.pins.size(); ++slot) {
    v1::SlotPlace& place = *plan.topology.add_slots();
    const int node = of_slots[slot];
    place.set_numa_node(node < 0 ? -1 : nodes[static_cast<size_t>(node)].number);
    place.set_cores(CpuListText(plan.pins[slot].threads));
    if (cards.empty()) continue;
    place.set_pci(cards[slot].pci);
    for (size_t other = slot + 1; other < plan.pins.size(); ++other) {
      if (other >= cards[slot].reaches.size()) break;
      const CardReach& reach = cards[slot].reaches[other];
      if (reach.path == v1::CARD_PATH_UNSPECIFIED) continue;
      v1::SlotLink& link = *plan.topology.add_links();
      link.set_slot(static_cast<int32_t>(slot));
      link.set_other(static_cast<int32_t>(other));
      link.set_path(reach.path);
      link.set_nvlinks(reach.nvlinks);
    }
  }
}

}  // namespace

absl::StatusOr<SlotPlan> PlanSlots(const std::vector<HostNode>& nodes,
                                   const std::vector<Card>& cards,
                                   const std::vector<int>& card_nodes, int32_t slots,
                                   Pinning pinning) {
  if (nodes.empty()) return absl::InvalidArgumentError("this process may use no CPU");
  if (!cards.empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckSlots(slots, cards));
    if (card_nodes.size() != cards.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("card_nodes: ", card_nodes.size(), " entries for ", cards.size(), " cards"));
    }
  }
  SlotPlan plan;
  plan.pins.resize(static_cast<size_t>(slots));
  const std::vector<int> of_slots = NodesOfSlots(nodes, cards, card_nodes, slots);
  std::map<int, int64_t> on_node;  // slots
  for (const int node : of_slots) ++on_node[node];
  std::map<int, int64_t> seen;
  for (size_t slot = 0; slot < of_slots.size(); ++slot) {
    const int index = of_slots[slot];
    if (pinning == Pinning::kNone) continue;
    if (index < 0) {
      if (!cards.empty()) {
        plan.notices.push_back(absl::StrCat("the NUMA node of slot ", slot, "'s card ",
                                            cards[slot].pci,
                                            " is unknown; its ranks are not pinned"));
      }
      continue;
    }
    const HostNode& node = nodes[static_cast<size_t>(index)];
    SlotPin& pin = plan.pins[slot];
    if (nodes.size() > 1) pin.memory_node = node.number;
    if (pinning == Pinning::kNode) {
      if (nodes.size() > 1) pin.threads = node.Threads();
      continue;
    }
    const auto cores = static_cast<int64_t>(node.cores.size());
    if (cores < on_node[index]) {
      return absl::InvalidArgumentError(
          absl::StrCat("--pin cores: NUMA node ", node.number, " has ", Counted(cores, "core"),
                       " for ", Counted(on_node[index], "slot"), "; use --pin node"));
    }
    pin.threads = ShareOf(node, seen[index]++, on_node[index]);
  }
  if (slots <= kMaxDescribedSlots) Describe(nodes, cards, of_slots, plan);
  return plan;
}

}  // namespace nibble

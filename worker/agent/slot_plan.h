// Where a worker's slots are, and the cores and memory that a slot's ranks get: cards, NUMA nodes
// and cores together. Pure, so that the layout of any host can be tested.
//
// A slot with a card belongs to the card's NUMA node. CPU slots are spread evenly over the nodes,
// in order; if there are fewer slots than nodes, a slot spans several nodes and is not pinned.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_SLOT_PLAN_H_
#define NIBBLE_WORKER_AGENT_SLOT_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker.pb.h"
#include "worker/agent/cards.h"
#include "worker/agent/host_topology.h"

namespace nibble {

enum class Pinning {
  kNone,   // ranks run where the kernel puts them
  kNode,   // on all cores of the slot's NUMA node, with its memory preferred; a host with one node
           // is not pinned
  kCores,  // as kNode, and the slots of a node divide its cores
};

// What a slot's ranks are bound to.
struct SlotPin {
  std::vector<int> threads;  // hardware threads; empty: all
  int memory_node = -1;      // NUMA node whose memory is preferred; -1: as the kernel does

  friend bool operator==(const SlotPin&, const SlotPin&) = default;
};

struct SlotPlan {
  v1::Topology topology;
  std::vector<SlotPin> pins;         // by slot
  std::vector<std::string> notices;  // for people
};

// Slots beyond this number are not described: links are pairs.
inline constexpr int32_t kMaxDescribedSlots = 64;

// `cards`: by slot; empty: CPU slots. `card_nodes`: the NUMA node of each card, -1 if unknown.
// InvalidArgument, naming both numbers, if kCores finds fewer cores than slots on a node.
absl::StatusOr<SlotPlan> PlanSlots(const std::vector<HostNode>& nodes,
                                   const std::vector<Card>& cards,
                                   const std::vector<int>& card_nodes, int32_t slots,
                                   Pinning pinning);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SLOT_PLAN_H_

#include "client/remote/worker_topology.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/text/table.h"

namespace nibble {
namespace {

std::string PathText(const v1::SlotLink& link) {
  switch (link.path()) {
    case v1::CARD_PATH_NVLINK:
      return link.nvlinks() > 0 ? absl::StrCat("NV", link.nvlinks()) : "NV";
    case v1::CARD_PATH_BOARD:
      return "BOARD";
    case v1::CARD_PATH_SWITCH:
      return "PIX";
    case v1::CARD_PATH_SWITCHES:
      return "PXB";
    case v1::CARD_PATH_BRIDGE:
      return "PHB";
    case v1::CARD_PATH_NODE:
      return "NODE";
    case v1::CARD_PATH_SYSTEM:
      return "SYS";
    default:
      return "?";
  }
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// The cores of a NUMA node; empty if it is unknown.
std::string CoresOf(const v1::Topology& topology, int32_t number) {
  for (const v1::NumaNode& node : topology.nodes()) {
    if (node.node() == number) return node.cores();
  }
  return "";
}

}  // namespace

std::string TopologyTable(const v1::Topology& topology) {
  if (topology.slots().empty()) return "";
  std::map<std::pair<int32_t, int32_t>, std::string> paths;
  for (const v1::SlotLink& link : topology.links()) {
    paths[{link.slot(), link.other()}] = paths[{link.other(), link.slot()}] = PathText(link);
  }
  std::vector<std::string> heads = {"SLOT", "CARD", "NUMA", "CORES OF NODE", "PINNED TO"};
  const int32_t columns = paths.empty() ? 0 : topology.slots_size();
  for (int32_t other = 0; other < columns; ++other) heads.push_back(absl::StrCat("TO ", other));
  TextTable table(heads);
  for (int32_t slot = 0; slot < topology.slots_size(); ++slot) {
    const v1::SlotPlace& place = topology.slots(slot);
    std::vector<std::string> row = {absl::StrCat(slot), OrDash(place.pci()),
                                    place.numa_node() < 0 ? "-" : absl::StrCat(place.numa_node()),
                                    OrDash(CoresOf(topology, place.numa_node())),
                                    OrDash(place.cores())};
    for (int32_t other = 0; other < columns; ++other) {
      const auto at = paths.find({slot, other});
      row.push_back(at == paths.end() ? "-" : at->second);
    }
    table.Add(std::move(row));
  }
  return table.Text();
}

}  // namespace nibble

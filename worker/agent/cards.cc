#include "worker/agent/cards.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int kBlackwell = 100;

// NVML's levels of a common ancestor of two cards, and its capability "over NVLink".
constexpr int kSameBoard = 0, kOneSwitch = 10, kSwitches = 20, kHostBridge = 30, kNumaNode = 40;
constexpr int kPeerOverNvLink = 2;
constexpr unsigned kMostNvLinks = 32;

std::string PciAddress(const NvmlPci& pci) {
  return absl::StrFormat("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
}

// Empty if the driver does not report it.
std::string PciOf(const Nvml& nvml, NvmlDevice device) {
  NvmlPci pci = {};
  const bool known =
      nvml.functions().GetPci != nullptr && nvml.functions().GetPci(device, &pci) == 0;
  return known ? PciAddress(pci) : "";
}

// NVLinks of a card: to each PCI address, and in all.
struct ActiveLinks {
  std::map<std::string, int> to;
  int all = 0;
};

ActiveLinks LinksOf(const Nvml& nvml, NvmlDevice device) {
  const NvmlFunctions& functions = nvml.functions();
  ActiveLinks links;
  if (functions.GetLinkState == nullptr || functions.GetLinkRemote == nullptr) return links;
  for (unsigned link = 0; link < kMostNvLinks; ++link) {
    int active = 0;
    NvmlPci remote = {};
    if (functions.GetLinkState(device, link, &active) != 0 || active == 0) continue;
    if (functions.GetLinkRemote(device, link, &remote) != 0) continue;
    ++links.to[PciAddress(remote)];
    ++links.all;
  }
  return links;
}

v1::CardPath PathOfLevel(int level) {
  switch (level) {
    case kSameBoard:
      return v1::CARD_PATH_BOARD;
    case kOneSwitch:
      return v1::CARD_PATH_SWITCH;
    case kSwitches:
      return v1::CARD_PATH_SWITCHES;
    case kHostBridge:
      return v1::CARD_PATH_BRIDGE;
    case kNumaNode:
      return v1::CARD_PATH_NODE;
    default:
      return v1::CARD_PATH_SYSTEM;
  }
}

// Fills the cards' reaches. What a driver does not report stays unspecified.
void ConnectAll(const Nvml& nvml, const std::vector<NvmlDevice>& devices,
                std::vector<Card>& cards) {
  const NvmlFunctions& functions = nvml.functions();
  std::vector<ActiveLinks> links;
  for (const NvmlDevice device : devices) links.push_back(LinksOf(nvml, device));
  for (size_t a = 0; a < cards.size(); ++a) {
    cards[a].reaches.resize(cards.size());
    for (size_t b = 0; b < cards.size(); ++b) {
      if (a == b) continue;
      CardReach& reach = cards[a].reaches[b];
      int level = 0;
      int status = 0;
      if (functions.GetAncestor != nullptr &&
          functions.GetAncestor(devices[a], devices[b], &level) == 0) {
        reach.path = PathOfLevel(level);
      }
      if (functions.GetPeerStatus == nullptr ||
          functions.GetPeerStatus(devices[a], devices[b], kPeerOverNvLink, &status) != 0 ||
          status != 0) {
        continue;
      }
      reach.path = v1::CARD_PATH_NVLINK;
      const auto direct = links[a].to.find(cards[b].pci);
      // Links that do not lead to a card lead to switches, which connect all cards.
      reach.nvlinks =
          direct != links[a].to.end() ? direct->second : std::min(links[a].all, links[b].all);
    }
  }
}

absl::StatusOr<Card> Describe(const Nvml& nvml, const std::string& id, NvmlDevice device) {
  NvmlMemory memory = {};
  int major = 0, minor = 0;
  NIBBLE_ASSIGN_OR_RETURN(std::string name, nvml.NameOf(device));
  NIBBLE_RETURN_IF_ERROR(
      nvml.StatusOf(nvml.functions().GetMemory(device, &memory), "memory of a card"));
  NIBBLE_RETURN_IF_ERROR(nvml.StatusOf(nvml.functions().GetCapability(device, &major, &minor),
                                       "compute capability of a card"));
  return Card{.id = id,
              .name = std::move(name),
              .memory_bytes = static_cast<int64_t>(memory.total),
              .capability = 10 * major + minor,
              .pci = PciOf(nvml, device)};
}

}  // namespace

std::vector<std::string> VisibleEntries(absl::string_view visible) {
  std::vector<std::string> entries;
  for (const absl::string_view part : absl::StrSplit(visible, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(part);
    if (entry.empty() || absl::StartsWith(entry, "-")) break;
    entries.emplace_back(entry);
  }
  return entries;
}

absl::StatusOr<std::vector<Card>> FindCards(const char* visible, const std::string& library) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open(library));
  std::vector<std::string> ids;
  if (visible != nullptr) {
    ids = VisibleEntries(visible);
  } else {
    unsigned count = 0;
    NIBBLE_RETURN_IF_ERROR(nvml->StatusOf(nvml->functions().GetCount(&count), "number of cards"));
    for (unsigned i = 0; i < count; ++i) ids.push_back(absl::StrCat(i));
  }
  std::vector<Card> cards;
  std::vector<NvmlDevice> devices;
  for (const std::string& id : ids) {
    NIBBLE_ASSIGN_OR_RETURN(const NvmlDevice device, nvml->Find(id));
    NIBBLE_ASSIGN_OR_RETURN(Card card, Describe(*nvml, id, device));
    cards.push_back(std::move(card));
    devices.push_back(device);
  }
  ConnectAll(*nvml, devices, cards);
  return cards;
}

v1::Hardware HardwareOf(const std::vector<Card>& cards) {
  v1::Hardware hardware;
  hardware.set_device(v1::DEVICE_CUDA);
  if (cards.empty()) return hardware;
  hardware.set_model(cards[0].name);
  hardware.set_memory_bytes(cards[0].memory_bytes);
  hardware.set_fp4_tensor_cores(true);
  for (const Card& card : cards) {
    if (card.name != cards[0].name) hardware.set_model("several kinds of cards");
    hardware.set_memory_bytes(std::min(hardware.memory_bytes(), card.memory_bytes));
    if (card.capability < kBlackwell) hardware.set_fp4_tensor_cores(false);
  }
  return hardware;
}

absl::Status CheckSlots(int32_t slots, const std::vector<Card>& cards) {
  if (slots <= static_cast<int64_t>(cards.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--slots: ", slots, ", but this machine has ",
                   Counted(static_cast<int64_t>(cards.size()), "card"),
                   cards.empty() ? "" : absl::StrCat(" (", cards[0].name, ")"),
                   "; with --device cuda a slot is a card"));
}

}  // namespace nibble

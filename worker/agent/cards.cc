#include "worker/agent/cards.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int kBlackwell = 100;

absl::StatusOr<Card> Describe(const Nvml& nvml, const std::string& id) {
  NvmlMemory memory = {};
  int major = 0, minor = 0;
  NIBBLE_ASSIGN_OR_RETURN(const NvmlDevice device, nvml.Find(id));
  NIBBLE_ASSIGN_OR_RETURN(std::string name, nvml.NameOf(device));
  NIBBLE_RETURN_IF_ERROR(
      nvml.StatusOf(nvml.functions().GetMemory(device, &memory), "memory of a card"));
  NIBBLE_RETURN_IF_ERROR(nvml.StatusOf(nvml.functions().GetCapability(device, &major, &minor),
                                       "compute capability of a card"));
  return Card{.id = id,
              .name = std::move(name),
              .memory_bytes = static_cast<int64_t>(memory.total),
              .capability = 10 * major + minor};
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
  for (const std::string& id : ids) {
    NIBBLE_ASSIGN_OR_RETURN(Card card, Describe(*nvml, id));
    cards.push_back(std::move(card));
  }
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

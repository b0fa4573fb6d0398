#include "worker/agent/cards.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr unsigned kNameBytes = 96;
constexpr int kBlackwell = 100;

// The functions of NVML that are used, with its C interface: the toolkit is not needed to build.
struct Nvml {
  using Device = struct DeviceRecord*;
  struct Memory {
    unsigned long long total, free, used;
  };
  int (*Init)();
  int (*Shutdown)();
  const char* (*ErrorString)(int);
  int (*GetCount)(unsigned*);
  int (*ByIndex)(unsigned, Device*);
  int (*ByUuid)(const char*, Device*);
  int (*GetName)(Device, char*, unsigned);
  int (*GetMemory)(Device, Memory*);
  int (*GetCapability)(Device, int*, int*);

  absl::Status StatusOf(int code, absl::string_view what) const {
    if (code == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver: ", what, ": ", ErrorString(code)));
  }
};

template <class Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<Nvml> LoadNvml() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no NVIDIA driver is installed on this machine (", kLibrary, ")"));
  }
  Nvml nvml;
  const bool found = Find(library, "nvmlInit_v2", nvml.Init) &&
                     Find(library, "nvmlShutdown", nvml.Shutdown) &&
                     Find(library, "nvmlErrorString", nvml.ErrorString) &&
                     Find(library, "nvmlDeviceGetCount_v2", nvml.GetCount) &&
                     Find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.ByIndex) &&
                     Find(library, "nvmlDeviceGetHandleByUUID", nvml.ByUuid) &&
                     Find(library, "nvmlDeviceGetName", nvml.GetName) &&
                     Find(library, "nvmlDeviceGetMemoryInfo", nvml.GetMemory) &&
                     Find(library, "nvmlDeviceGetCudaComputeCapability", nvml.GetCapability);
  if (!found) {
    return absl::FailedPreconditionError(
        absl::StrCat(kLibrary, " lacks a function; the driver is too old"));
  }
  return nvml;
}

absl::StatusOr<Card> Describe(const Nvml& nvml, const std::string& id) {
  Nvml::Device device = nullptr;
  unsigned index = 0;
  const int code = absl::SimpleAtoi(id, &index) ? nvml.ByIndex(index, &device)
                                                : nvml.ByUuid(id.c_str(), &device);
  if (code != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CUDA_VISIBLE_DEVICES: '", id, "' is no card of this machine: ", nvml.ErrorString(code)));
  }
  char name[kNameBytes] = {};
  Nvml::Memory memory = {};
  int major = 0, minor = 0;
  NIBBLE_RETURN_IF_ERROR(nvml.StatusOf(nvml.GetName(device, name, kNameBytes), "name of a card"));
  NIBBLE_RETURN_IF_ERROR(nvml.StatusOf(nvml.GetMemory(device, &memory), "memory of a card"));
  NIBBLE_RETURN_IF_ERROR(
      nvml.StatusOf(nvml.GetCapability(device, &major, &minor), "compute capability of a card"));
  return Card{.id = id,
              .name = name,
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

absl::StatusOr<std::vector<Card>> FindCards(const char* visible) {
  NIBBLE_ASSIGN_OR_RETURN(const Nvml nvml, LoadNvml());
  NIBBLE_RETURN_IF_ERROR(nvml.StatusOf(nvml.Init(), "initialisation"));
  absl::Status status;
  std::vector<std::string> ids;
  if (visible != nullptr) {
    ids = VisibleEntries(visible);
  } else {
    unsigned count = 0;
    status = nvml.StatusOf(nvml.GetCount(&count), "number of cards");
    for (unsigned i = 0; i < count; ++i) ids.push_back(absl::StrCat(i));
  }
  std::vector<Card> cards;
  for (const std::string& id : ids) {
    absl::StatusOr<Card> card = Describe(nvml, id);
    if (!card.ok()) {
      status = card.status();
      break;
    }
    cards.push_back(*std::move(card));
  }
  nvml.Shutdown();
  NIBBLE_RETURN_IF_ERROR(status);
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

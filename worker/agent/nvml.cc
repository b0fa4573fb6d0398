#include "worker/agent/nvml.h"

#include <dlfcn.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr unsigned kCardNameBytes = 96;

template <class Function>
bool FindFunction(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// False if one is missing that cannot be done without.
bool FindAll(void* library, NvmlFunctions& nvml) {
  const auto find = [library](const char* name, auto& function) {
    return FindFunction(library, name, function);
  };
  (void)find("nvmlDeviceGetUtilizationRates", nvml.GetUtilization);
  (void)find("nvmlDeviceGetPowerUsage", nvml.GetPower);
  (void)find("nvmlDeviceGetEnforcedPowerLimit", nvml.GetPowerLimit);
  (void)find("nvmlDeviceGetTotalEnergyConsumption", nvml.GetEnergy);
  (void)find("nvmlDeviceGetTemperature", nvml.GetTemperature);
  (void)find("nvmlDeviceGetClockInfo", nvml.GetClock);
  (void)find("nvmlDeviceGetMaxClockInfo", nvml.GetMaxClock);
  (void)find("nvmlDeviceGetCurrentClocksThrottleReasons", nvml.GetSlowdowns);
  (void)find("nvmlDeviceGetTotalEccErrors", nvml.GetEccErrors);
  (void)find("nvmlDeviceGetNvLinkState", nvml.GetLinkState);
  (void)find("nvmlDeviceGetNvLinkErrorCounter", nvml.GetLinkErrors);
  (void)find("nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.GetLinkRemote);
  (void)find("nvmlDeviceGetPciInfo_v3", nvml.GetPci);
  (void)find("nvmlDeviceGetTopologyCommonAncestor", nvml.GetAncestor);
  (void)find("nvmlDeviceGetP2PStatus", nvml.GetPeerStatus);
  (void)find("nvmlDeviceGetFieldValues", nvml.GetFields);
  (void)find("nvmlDeviceGetPcieThroughput", nvml.GetPcieTraffic);
  (void)find("nvmlDeviceGetPcieReplayCounter", nvml.GetPcieReplays);
  return find("nvmlInit_v2", nvml.Init) && find("nvmlShutdown", nvml.Shutdown) &&
         find("nvmlErrorString", nvml.ErrorString) &&
         find("nvmlDeviceGetCount_v2", nvml.GetCount) &&
         find("nvmlDeviceGetHandleByIndex_v2", nvml.ByIndex) &&
         find("nvmlDeviceGetHandleByUUID", nvml.ByUuid) &&
         find("nvmlDeviceGetName", nvml.GetName) &&
         find("nvmlDeviceGetMemoryInfo", nvml.GetMemory) &&
         find("nvmlDeviceGetCudaComputeCapability", nvml.GetCapability);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no NVIDIA driver is installed on this machine (", library, ")"));
  }
  NvmlFunctions functions;
  if (!FindAll(loaded, functions)) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, " lacks a function; the driver is too old"));
  }
  const int code = functions.Init();
  if (code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver: initialisation: ", functions.ErrorString(code)));
  }
  return std::unique_ptr<Nvml>(new Nvml(functions));
}

Nvml::~Nvml() { functions_.Shutdown(); }

absl::Status Nvml::StatusOf(int code, absl::string_view what) const {
  if (code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the NVIDIA driver: ", what, ": ", functions_.ErrorString(code)));
}

absl::StatusOr<NvmlDevice> Nvml::Find(const std::string& id) const {
  NvmlDevice device = nullptr;
  unsigned index = 0;
  const int code = absl::SimpleAtoi(id, &index) ? functions_.ByIndex(index, &device)
                                                : functions_.ByUuid(id.c_str(), &device);
  if (code == 0) return device;
  return absl::InvalidArgumentError(
      absl::StrCat("CUDA_VISIBLE_DEVICES: '", id,
                   "' is no card of this machine: ", functions_.ErrorString(code)));
}

absl::StatusOr<std::string> Nvml::NameOf(NvmlDevice device) const {
  char name[kCardNameBytes] = {};
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(functions_.GetName(device, name, kCardNameBytes), "name of a card"));
  return std::string(name);
}

}  // namespace nibble

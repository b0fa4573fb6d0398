// For tests: a shared library with the functions of NVML that nvml_interface.h declares, of a
// machine with two cards that do not exist. Card 0 has everything, some of it at a fault, and its
// NVLinks lead to a switch; card 1, behind the same PCIe host bridge, supports neither NVLink nor
// error correction; the card GPU-lost is found and no longer answers.
//
// Thread-safety: all functions.
#include <cstdio>
#include <cstring>

#include "worker/agent/nvml_interface.h"

namespace {

using Device = nibble::NvmlDevice;
using Count = nibble::NvmlCount;

constexpr int kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kLost = 15;
nibble::NvmlDeviceRecord cards[3];
const Device kLostCard = &cards[2];

// What a function returns for the device: card 1 lacks some.
int Code(Device device, bool on_all = true) {
  if (device == kLostCard) return kLost;
  return on_all || device == &cards[0] ? 0 : kNotSupported;
}
template <class Value>
int Return(int code, Value value, Value* out) {
  if (code == 0) *out = value;
  return code;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int code) {
  return code == kNotFound ? "Not Found" : code == kLost ? "GPU is lost" : "Invalid Argument";
}
int nvmlDeviceGetCount_v2(unsigned* count) { return Return(0, 2U, count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  return index < 2 ? Return(0, &cards[index], device) : kInvalidArgument;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  return std::strcmp(uuid, "GPU-lost") == 0 ? Return(0, kLostCard, device) : kNotFound;
}
int nvmlDeviceGetName(Device device, char* name, unsigned size) {
  if (Code(device) == 0) (void)std::snprintf(name, size, "NVIDIA Test Card");
  return Code(device);
}
int nvmlDeviceGetMemoryInfo(Device device, nibble::NvmlMemory* memory) {
  return Return(Code(device), nibble::NvmlMemory{80'000'000'000, 60'000'000'000, 20'000'000'000},
                memory);
}
int nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  (void)Return(Code(device), 0, minor);
  return Return(Code(device), 9, major);
}
int nvmlDeviceGetUtilizationRates(Device device, nibble::NvmlUtilization* busy) {
  return Return(Code(device), nibble::NvmlUtilization{75, 40}, busy);
}
int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  return Return(Code(device), 650'000U, milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* milliwatts) {
  return Return(Code(device), 700'000U, milliwatts);
}
int nvmlDeviceGetTotalEnergyConsumption(Device device, Count* millijoules) {
  return Return(Code(device), Count{5'000'000}, millijoules);
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned* celsius) {
  return sensor == 0 ? Return(Code(device), 61U, celsius) : kInvalidArgument;
}
int nvmlDeviceGetClockInfo(Device device, int clock, unsigned* megahertz) {
  return Return(Code(device), clock == 1 ? 1500U : 2600U, megahertz);
}
int nvmlDeviceGetMaxClockInfo(Device device, int clock, unsigned* megahertz) {
  return Return(Code(device), clock == 1 ? 1980U : 2619U, megahertz);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, Count* reasons) {
  return Return(Code(device), Count{0x4 | 0x40}, reasons);
}
int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, Count* errors) {
  return counter == 0 ? Return(Code(device, false), Count{kind == 0 ? 5U : 1U}, errors)
                      : kInvalidArgument;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, int* active) {
  return link < 18 ? Return(Code(device, false), link < 12 ? 1 : 0, active) : kInvalidArgument;
}
int nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, int kind, Count* errors) {
  // One replay on each active link, and one error of each kind on the first.
  return Return(Code(device, false), Count{kind == 0 || link == 0 ? 1U : 0U}, errors);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, nibble::NvmlPci* remote) {
  return link < 18 ? Return(Code(device, false), nibble::NvmlPci{.domain = 0, .bus = 0x40}, remote)
                   : kInvalidArgument;
}
int nvmlDeviceGetPciInfo_v3(Device device, nibble::NvmlPci* pci) {
  return Return(Code(device),
                nibble::NvmlPci{.domain = 0, .bus = device == &cards[0] ? 0x1bU : 0x43U}, pci);
}
int nvmlDeviceGetTopologyCommonAncestor(Device device, Device other, int* level) {
  return Return(Code(device) == 0 ? Code(other) : Code(device), 30, level);
}
int nvmlDeviceGetP2PStatus(Device device, Device other, int capability, int* status) {
  constexpr int kNotSupportedStatus = 4;
  return Return(Code(device) == 0 ? Code(other) : Code(device),
                capability == 2 ? kNotSupportedStatus : 0, status);
}
int nvmlDeviceGetFieldValues(Device device, int count, nibble::NvmlFieldValue* values) {
  for (int i = 0; i < count; ++i) {
    values[i].code = Code(device, false);
    values[i].type = 3;
    values[i].value.wide = values[i].field == 138 ? 1000 : 2000;  // KiB
  }
  return 0;
}
int nvmlDeviceGetPcieThroughput(Device device, int direction, unsigned* kilobytes) {
  return Return(Code(device), direction == 0 ? 300U : 400U, kilobytes);
}
int nvmlDeviceGetPcieReplayCounter(Device device, unsigned* replays) {
  return Return(Code(device), 2U, replays);
}

}  // extern "C"

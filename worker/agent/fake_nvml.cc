// For tests: a shared library with the functions of NVML that nvml.h declares, of a machine with
// two cards that do not exist. Card 0 has everything, some of it at a fault; card 1 supports
// neither NVLink nor error correction; the card GPU-lost is found and no longer answers.
//
// Thread-safety: all functions.
#include <cstdio>
#include <cstring>

using Count = unsigned long long;
struct Memory {
  Count total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type, code;
  Count value;
};

namespace {

constexpr int kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kLost = 15;
int cards[3];  // their addresses are the devices
int* const kLostCard = &cards[2];

// What a function returns for the device: card 1 lacks some.
int Code(const int* device, bool on_all = true) {
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
int nvmlDeviceGetHandleByIndex_v2(unsigned index, int** device) {
  return index < 2 ? Return(0, &cards[index], device) : kInvalidArgument;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, int** device) {
  return std::strcmp(uuid, "GPU-lost") == 0 ? Return(0, kLostCard, device) : kNotFound;
}
int nvmlDeviceGetName(int* device, char* name, unsigned size) {
  if (Code(device) == 0) (void)std::snprintf(name, size, "NVIDIA Test Card");
  return Code(device);
}
int nvmlDeviceGetMemoryInfo(int* device, Memory* memory) {
  return Return(Code(device), Memory{80'000'000'000, 60'000'000'000, 20'000'000'000}, memory);
}
int nvmlDeviceGetCudaComputeCapability(int* device, int* major, int* minor) {
  (void)Return(Code(device), 0, minor);
  return Return(Code(device), 9, major);
}
int nvmlDeviceGetUtilizationRates(int* device, Utilization* busy) {
  return Return(Code(device), Utilization{75, 40}, busy);
}
int nvmlDeviceGetPowerUsage(int* device, unsigned* milliwatts) {
  return Return(Code(device), 650'000U, milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(int* device, unsigned* milliwatts) {
  return Return(Code(device), 700'000U, milliwatts);
}
int nvmlDeviceGetTotalEnergyConsumption(int* device, Count* millijoules) {
  return Return(Code(device), Count{5'000'000}, millijoules);
}
int nvmlDeviceGetTemperature(int* device, int sensor, unsigned* celsius) {
  return sensor == 0 ? Return(Code(device), 61U, celsius) : kInvalidArgument;
}
int nvmlDeviceGetClockInfo(int* device, int clock, unsigned* megahertz) {
  return Return(Code(device), clock == 1 ? 1500U : 2600U, megahertz);
}
int nvmlDeviceGetMaxClockInfo(int* device, int clock, unsigned* megahertz) {
  return Return(Code(device), clock == 1 ? 1980U : 2619U, megahertz);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(int* device, Count* reasons) {
  return Return(Code(device), Count{0x4 | 0x40}, reasons);
}
int nvmlDeviceGetTotalEccErrors(int* device, int kind, int counter, Count* errors) {
  return counter == 0 ? Return(Code(device, false), Count{kind == 0 ? 5U : 1U}, errors)
                      : kInvalidArgument;
}
int nvmlDeviceGetNvLinkState(int* device, unsigned link, int* active) {
  return link < 18 ? Return(Code(device, false), link < 12 ? 1 : 0, active) : kInvalidArgument;
}
int nvmlDeviceGetNvLinkErrorCounter(int* device, unsigned link, int kind, Count* errors) {
  // One replay on each active link, and one error of each kind on the first.
  return Return(Code(device, false), Count{kind == 0 || link == 0 ? 1U : 0U}, errors);
}
int nvmlDeviceGetFieldValues(int* device, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    values[i].code = Code(device, false);
    values[i].type = 3;
    values[i].value = values[i].field == 138 ? 1000 : 2000;  // KiB
  }
  return 0;
}
int nvmlDeviceGetPcieThroughput(int* device, int direction, unsigned* kilobytes) {
  return Return(Code(device), direction == 0 ? 300U : 400U, kilobytes);
}
int nvmlDeviceGetPcieReplayCounter(int* device, unsigned* replays) {
  return Return(Code(device), 2U, replays);
}

}  // extern "C"

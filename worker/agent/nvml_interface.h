// The C interface of NVIDIA's management library (NVML), as far as a worker uses it. Shared by the
// loader (nvml.h) and the library that stands in for it in tests.
//
// Ownership: devices are the library's. Thread-safety: NVML's functions may be called from any
// thread.
#ifndef NIBBLE_WORKER_AGENT_NVML_INTERFACE_H_
#define NIBBLE_WORKER_AGENT_NVML_INTERFACE_H_

namespace nibble {

// Types of NVML's interface.
struct NvmlDeviceRecord {};  // its contents are the library's own
using NvmlDevice = NvmlDeviceRecord*;
using NvmlCount = unsigned long long;  // NOLINT(google-runtime-int)
struct NvmlMemory {
  NvmlCount total, free, used;  // bytes
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct NvmlPci {
  char short_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
static_assert(sizeof(NvmlPci) == 68, "the layout of nvmlPciInfo_t");
struct NvmlFieldValue {
  unsigned field, scope;
  long long timestamp, latency;  // NOLINT(google-runtime-int)
  int type, code;
  union {
    double real;
    unsigned narrow;
    NvmlCount wide;
  } value;
};
static_assert(sizeof(NvmlFieldValue) == 40, "the layout of nvmlFieldValue_t");

// Pointers to NVML's functions, which return 0 or an error. Those below the line are absent from
// some drivers, and then null.
struct NvmlFunctions {
  int (*Init)() = nullptr;
  int (*Shutdown)() = nullptr;
  const char* (*ErrorString)(int) = nullptr;
  int (*GetCount)(unsigned*) = nullptr;
  int (*ByIndex)(unsigned, NvmlDevice*) = nullptr;
  int (*ByUuid)(const char*, NvmlDevice*) = nullptr;
  int (*GetName)(NvmlDevice, char*, unsigned) = nullptr;
  int (*GetMemory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*GetCapability)(NvmlDevice, int*, int*) = nullptr;
  // ---
  int (*GetUtilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*GetPower)(NvmlDevice, unsigned*) = nullptr;                    // mW
  int (*GetPowerLimit)(NvmlDevice, unsigned*) = nullptr;               // mW
  int (*GetEnergy)(NvmlDevice, NvmlCount*) = nullptr;                  // mJ
  int (*GetTemperature)(NvmlDevice, int sensor, unsigned*) = nullptr;  // °C
  int (*GetClock)(NvmlDevice, int clock, unsigned*) = nullptr;         // MHz
  int (*GetMaxClock)(NvmlDevice, int clock, unsigned*) = nullptr;      // MHz
  int (*GetSlowdowns)(NvmlDevice, NvmlCount* reasons) = nullptr;
  int (*GetEccErrors)(NvmlDevice, int kind, int counter, NvmlCount*) = nullptr;
  int (*GetLinkState)(NvmlDevice, unsigned link, int* active) = nullptr;
  int (*GetLinkErrors)(NvmlDevice, unsigned link, int kind, NvmlCount*) = nullptr;
  int (*GetLinkRemote)(NvmlDevice, unsigned link, NvmlPci*) = nullptr;
  int (*GetPci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*GetAncestor)(NvmlDevice, NvmlDevice, int* level) = nullptr;
  int (*GetPeerStatus)(NvmlDevice, NvmlDevice, int capability, int* status) = nullptr;
  int (*GetFields)(NvmlDevice, int count, NvmlFieldValue*) = nullptr;
  int (*GetPcieTraffic)(NvmlDevice, int direction, unsigned*) = nullptr;  // KB/s
  int (*GetPcieReplays)(NvmlDevice, unsigned*) = nullptr;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_NVML_INTERFACE_H_

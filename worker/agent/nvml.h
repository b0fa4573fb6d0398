// The management library of NVIDIA's driver (NVML), loaded while the program runs: the functions
// that a worker uses, with their C interface, so that neither the toolkit nor a driver is needed to
// build or to run without cards.
//
// Ownership: an Nvml ends the library's use when it is destroyed; the library stays loaded. Devices
// are valid until then. Thread-safety: const methods from any thread, as NVML's functions.
#ifndef NIBBLE_WORKER_AGENT_NVML_H_
#define NIBBLE_WORKER_AGENT_NVML_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// Types of NVML's interface.
struct NvmlDeviceRecord;
using NvmlDevice = NvmlDeviceRecord*;
using NvmlCount = unsigned long long;  // NOLINT(google-runtime-int)
struct NvmlMemory {
  NvmlCount total, free, used;  // bytes
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
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
  int (*GetFields)(NvmlDevice, int count, NvmlFieldValue*) = nullptr;
  int (*GetPcieTraffic)(NvmlDevice, int direction, unsigned*) = nullptr;  // KB/s
  int (*GetPcieReplays)(NvmlDevice, unsigned*) = nullptr;
};

class Nvml {
 public:
  // Loads and initialises it. NotFound if there is no driver; FailedPrecondition, with NVML's
  // words, if it does not answer or lacks a function that every driver of the last years has.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library = kNvmlLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const NvmlFunctions& functions() const { return functions_; }
  // The card of an entry of CUDA_VISIBLE_DEVICES. InvalidArgument if there is none.
  absl::StatusOr<NvmlDevice> Find(const std::string& id) const;
  absl::StatusOr<std::string> NameOf(NvmlDevice device) const;
  // FailedPrecondition unless `code` is 0.
  absl::Status StatusOf(int code, absl::string_view what) const;

 private:
  explicit Nvml(const NvmlFunctions& functions) : functions_(functions) {}
  const NvmlFunctions functions_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_NVML_H_

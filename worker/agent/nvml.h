// The management library of NVIDIA's driver (NVML), loaded while the program runs, so that neither
// the toolkit nor a driver is needed to build or to run without cards.
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
#include "worker/agent/nvml_interface.h"

namespace nibble {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

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

// The NVIDIA cards of this machine, as the driver's management library (NVML) reports them: without
// a CUDA context, which would take memory of every card.
//
// Ownership: values. Thread-safety: any thread; a call loads the library (nvml.h).
#ifndef NIBBLE_WORKER_AGENT_CARDS_H_
#define NIBBLE_WORKER_AGENT_CARDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/common.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "worker/agent/nvml.h"

namespace nibble {

// How a card reaches another one.
struct CardReach {
  v1::CardPath path = v1::CARD_PATH_UNSPECIFIED;
  int nvlinks = 0;  // of CARD_PATH_NVLINK; 0: unknown
};

struct Card {
  std::string id;    // for CUDA_VISIBLE_DEVICES: a number, or a name beginning with GPU-
  std::string name;  // "NVIDIA H200"
  int64_t memory_bytes = 0;
  int capability = 0;              // compute capability: 90 is 9.0
  std::string pci;                 // address as /sys has it, such as "0000:17:00.0"; empty: unknown
  std::vector<CardReach> reaches;  // each card of the list, by its index; of itself unspecified
};

// The cards that a process with this CUDA_VISIBLE_DEVICES may use, in its order; null: all.
// NotFound if there is no driver, FailedPrecondition with NVML's words if it does not answer,
// InvalidArgument, naming the entry, for a card that does not exist.
absl::StatusOr<std::vector<Card>> FindCards(const char* visible,
                                            const std::string& library = kNvmlLibrary);

// The entries of CUDA_VISIBLE_DEVICES; like CUDA, stops at an empty or negative one.
std::vector<std::string> VisibleEntries(absl::string_view visible);

// The hardware that a worker with these cards as its slots reports to the coordinator: properties
// that all of them have.
v1::Hardware HardwareOf(const std::vector<Card>& cards);

// InvalidArgument, naming both numbers, if there are more slots than cards.
absl::Status CheckSlots(int32_t slots, const std::vector<Card>& cards);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CARDS_H_

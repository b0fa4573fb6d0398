// What the ranks decide about a step, on the device: every rank adds up its numbers, one gather
// shares them, and each rank derives the same outcome, from which the update takes its scale and
// whether it is made. The host reads the outcome once, while the update runs.
//
// Ownership: borrows device and collective; owns the numbers. Thread-safety: none; every rank makes
// the same calls in the same order.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_STEP_DECISION_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_STEP_DECISION_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/step_ops.h"
#include "kernels/tensor/memory.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/optim/collective_turn.h"

namespace nibble {

class StepDecision {
 public:
  static absl::StatusOr<std::unique_ptr<StepDecision>> Create(const Device& device,
                                                              Collective& collective);

  // Begins a step: this rank's numbers are 0.
  absl::Status Clear();
  // This rank's numbers, on the device.
  StepNumbers* mine() const { return numbers_.data<StepNumbers>() + collective_.rank(); }
  // Once mine() is complete; see Judge in kernels/ops/step_ops.h.
  absl::Status Decide(float max_norm, double loss_bound);
  const StepOutcome* on_device() const { return outcome_.data<StepOutcome>(); }
  // Waits for the decision, not for what was enqueued after it.
  absl::StatusOr<StepOutcome> Read();

 private:
  StepDecision(const Device& device, Collective& collective, CollectiveTurn turn)
      : device_(device), collective_(collective), turn_(std::move(turn)) {}

  Device device_;
  Collective& collective_;
  Buffer numbers_;  // [world] StepNumbers
  Buffer outcome_;  // StepOutcome
  Buffer copied_;   // the same, pinned
  CollectiveTurn turn_;
  std::unique_ptr<Event> decided_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_STEP_DECISION_H_

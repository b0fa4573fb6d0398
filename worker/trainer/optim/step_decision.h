// The ranks' decision about a step, on the device: every rank adds up its numbers, one gather
// shares them, and each rank derives the same outcome, which gives the scale of the update and
// whether it is made. The host reads the outcome once, while the update runs, together with the
// hosts' words to each other: a step has one exchange.
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
  // Once mine() is complete; see Judge in kernels/ops/step_ops.h. `said`: the words of this rank's
  // host.
  absl::Status Decide(float max_norm, double loss_bound, double norm_bound,
                      const HostWords& said = {});
  StepOutcome* on_device() const { return OutcomeIn(numbers_); }
  // Waits for the decision, not for what was enqueued after it.
  absl::StatusOr<StepOutcome> Read();
  // After Read(): the words of a rank's host.
  const HostWords& said(int rank) const { return copied_.data<StepNumbers>()[rank].said; }

 private:
  StepDecision(const Device& device, Collective& collective, CollectiveTurn turn)
      : device_(device), collective_(collective), turn_(std::move(turn)) {}

  Device device_;
  Collective& collective_;
  StepOutcome* OutcomeIn(const Buffer& numbers) const {
    return reinterpret_cast<StepOutcome*>(numbers.data<StepNumbers>() + collective_.world());
  }

  Buffer numbers_;  // [world] StepNumbers, then a StepOutcome
  Buffer copied_;   // the same, pinned
  Buffer said_;     // HostWords, pinned
  CollectiveTurn turn_;
  std::unique_ptr<Event> decided_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_STEP_DECISION_H_

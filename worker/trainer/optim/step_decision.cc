#include "worker/trainer/optim/step_decision.h"

#include <cstdint>
#include <utility>

#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<StepDecision>> StepDecision::Create(const Device& device,
                                                                   Collective& collective) {
  NIBBLE_ASSIGN_OR_RETURN(CollectiveTurn turn, CollectiveTurn::Create(device.backend));
  std::unique_ptr<StepDecision> decision(new StepDecision(device, collective, std::move(turn)));
  const size_t bytes =
      static_cast<size_t>(collective.world()) * sizeof(StepNumbers) + sizeof(StepOutcome);
  NIBBLE_ASSIGN_OR_RETURN(decision->numbers_, device.memory().Allocate(bytes));
  NIBBLE_ASSIGN_OR_RETURN(decision->copied_, device.backend.pinned().Allocate(bytes));
  NIBBLE_ASSIGN_OR_RETURN(decision->said_, device.backend.pinned().Allocate(sizeof(HostWords)));
  NIBBLE_ASSIGN_OR_RETURN(decision->decided_, device.backend.NewEvent());
  return decision;
}

absl::Status StepDecision::Clear() {
  return device_.ops.elementwise().Zero(mine(), sizeof(StepNumbers));
}

absl::Status StepDecision::Decide(float max_norm, double loss_bound, double norm_bound,
                                  const HostWords& said) {
  Queue& compute = device_.backend.compute();
  // The copy of the last step has run: Read() waited for what follows it.
  *said_.data<HostWords>() = said;
  NIBBLE_RETURN_IF_ERROR(compute.CopyIn(&mine()->said, said_.data(), sizeof(HostWords)));
  if (collective_.world() > 1) {
    NIBBLE_RETURN_IF_ERROR(turn_.Run([&] {
      return collective_.AllGather(mine(), numbers_.data(), sizeof(StepNumbers), Beside::kNothing);
    }));
  }
  NIBBLE_RETURN_IF_ERROR(device_.ops.step().Run(Judge{.numbers = numbers_.data<StepNumbers>(),
                                                      .world = collective_.world(),
                                                      .max_norm = max_norm,
                                                      .loss_bound = loss_bound,
                                                      .norm_bound = norm_bound,
                                                      .outcome = on_device()}));
  NIBBLE_RETURN_IF_ERROR(compute.CopyOut(copied_.data(), numbers_.data(), copied_.bytes()));
  return compute.Record(*decided_);
}

absl::StatusOr<StepOutcome> StepDecision::Read() {
  NIBBLE_RETURN_IF_ERROR(device_.backend.Wait(*decided_));
  return *OutcomeIn(copied_);
}

}  // namespace nibble

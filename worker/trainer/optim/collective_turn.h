// A collective operation between what was computed before it and what is computed after it: it runs
// in the queue of transfers, which waits for the computation, which then waits for it.
//
// Ownership: borrows the backend. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_COLLECTIVE_TURN_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_COLLECTIVE_TURN_H_

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "kernels/ops/backend.h"

namespace nibble {

class CollectiveTurn {
 public:
  static absl::StatusOr<CollectiveTurn> Create(Backend& backend) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Event> ready, backend.NewEvent());
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Event> shared, backend.NewEvent());
    return CollectiveTurn(backend, std::move(ready), std::move(shared));
  }

  absl::Status Run(absl::FunctionRef<absl::Status()> operation) {
    Queue& compute = backend_->compute();
    Queue& transfers = backend_->transfers();
    NIBBLE_RETURN_IF_ERROR(compute.Record(*ready_));
    NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*ready_));
    NIBBLE_RETURN_IF_ERROR(operation());
    NIBBLE_RETURN_IF_ERROR(transfers.Record(*shared_));
    return compute.WaitFor(*shared_);
  }

 private:
  CollectiveTurn(Backend& backend, std::unique_ptr<Event> ready, std::unique_ptr<Event> shared)
      : backend_(&backend), ready_(std::move(ready)), shared_(std::move(shared)) {}

  Backend* backend_;
  std::unique_ptr<Event> ready_, shared_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_COLLECTIVE_TURN_H_

// The numbers of a training step, which stay in the backend's memory until the host reads all of
// them at once: what every rank adds up, what the ranks then decide together, and whether the
// weights are updated.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Sums are in FP64 in an order determined by the lengths, so
// results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_STEP_OPS_H_
#define NIBBLE_KERNELS_OPS_STEP_OPS_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

namespace nibble {

// A message of a rank's host to the other hosts, sent with the numbers of a step; operations only
// pass it on.
using HostWords = std::array<uint64_t, 4>;

// The numbers of one rank.
struct StepNumbers {
  double loss = 0;          // sum over the targets
  double targets = 0;       // that are not ignored
  double squares = 0;       // of the summed gradients, over this rank's part of them
  uint64_t non_finite = 0;  // NaN and infinities among quantised operands
  HostWords said = {};
};

// The numbers of all ranks together; equal on each.
struct StepOutcome {
  double loss = 0;  // mean over the targets; 0 without targets
  double targets = 0;
  uint64_t non_finite = 0;
  float norm = 0;       // of the gradients, before clipping
  float scale = 1;      // of the gradients in the update: min(1, max_norm / norm)
  uint32_t update = 0;  // 1: the update is made, 0: it is skipped
  uint32_t reserved = 0;
};

// loss += Σ x, targets += the number of targets that are not -1. The sum: 1024 partial sums of
// elements j, j + 1024, …, in that order, then halves added to halves, the lower first.
struct AddLosses {
  const float* x = nullptr;          // [n], 0 where a target is ignored
  const int32_t* targets = nullptr;  // [n]
  int64_t n = 0;
  StepNumbers* numbers = nullptr;  // [1]
};
inline constexpr int64_t kLossSums = 1024;

// Adds the non_finite of every head to its own count and to all.
struct CountNonFinite {
  const void* heads = nullptr;  // `count` QuantHeads, `stride` bytes apart
  int64_t count = 0;
  int64_t stride = 0;
  uint64_t* by_head = nullptr;     // [count]
  StepNumbers* numbers = nullptr;  // [1]
};

// Decides whether the step updates the weights. No update if the loss, the norm or a quantised
// operand is not finite, if the loss is above `loss_bound`, or the norm above `norm_bound`.
struct Judge {
  const StepNumbers* numbers = nullptr;  // [world], by rank
  int world = 1;
  float max_norm = 0;  // 0: no clipping
  double loss_bound = 0;
  double norm_bound = std::numeric_limits<double>::infinity();
  StepOutcome* outcome = nullptr;  // [1]
};

// The decision, on any backend: sums in rank order.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline StepOutcome
    JudgeStep(const StepNumbers* numbers, int world, float max_norm, double loss_bound,
              double norm_bound) {
  StepNumbers all = numbers[0];
  for (int rank = 1; rank < world; ++rank) {
    all.loss += numbers[rank].loss;
    all.targets += numbers[rank].targets;
    all.squares += numbers[rank].squares;
    all.non_finite += numbers[rank].non_finite;
  }
  StepOutcome outcome;
  outcome.targets = all.targets;
  outcome.loss = all.targets > 0 ? all.loss / all.targets : 0.0;
  outcome.non_finite = all.non_finite;
  const double norm = sqrt(all.squares);
  outcome.norm = static_cast<float>(norm);
  // A norm that is NaN makes the scale NaN.
  if (max_norm > 0 && !(norm <= max_norm)) outcome.scale = static_cast<float>(max_norm / norm);
  // x - x is 0 for a finite x, and NaN otherwise.
  const bool finite =
      outcome.loss - outcome.loss == 0 && outcome.norm - outcome.norm == 0 && all.non_finite == 0;
  const bool spikes = outcome.loss > loss_bound || outcome.norm > norm_bound;
  outcome.update = finite && !spikes ? 1 : 0;
  return outcome;
}

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const AddLosses& request);
absl::Status Validate(const CountNonFinite& request);
absl::Status Validate(const Judge& request);

class StepOps {
 public:
  virtual ~StepOps() = default;
  virtual absl::Status Run(const AddLosses& request) = 0;
  virtual absl::Status Run(const CountNonFinite& request) = 0;
  virtual absl::Status Run(const Judge& request) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_STEP_OPS_H_

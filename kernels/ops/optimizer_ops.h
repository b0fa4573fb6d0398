// The optimizer's update: gradient norm and AdamW. What the step decides about the update
// (kernels/ops/step_ops.h) passes from one operation to the next in the backend's memory, so that
// no step waits for the host.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Sums are in FP64 in an order determined by the lengths, so
// results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_OPTIMIZER_OPS_H_
#define NIBBLE_KERNELS_OPS_OPTIMIZER_OPS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops/step_ops.h"

namespace nibble {

struct SumOfSquares {
  const float* x = nullptr;  // [n]
  int64_t n = 0;
  double* sum = nullptr;  // [1] out; NaN or infinite if an element is
  bool add = false;       // adds to *sum instead of overwriting it
};

// AdamW with decoupled decay, of all runs, all FP32, this order of operations:
//   g = saturate(grad · outcome.scale);  m = β1 m + (1 − β1) g;  v = β2 v + (1 − β2) g²
//   param −= lr · decay · param;  param −= lr · (m / c1) / (sqrt(v / c2) + eps)
// with c1 = 1 − β1^t, c2 = 1 − β2^t given. saturate keeps finite gradients within
// ±kLargestGradient, so that v stays finite: an infinite v would never decay, and its element would
// never be updated again. NaN and infinity become NaN. Nothing is written if outcome.update is 0.
inline constexpr float kLargestGradient = 1e19f;

// One run of adjacent elements. What the next step reads of them may be written beside them, so
// that it needs no pass of its own.
struct AdamWRun {
  int64_t n = 0;
  float* param = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  const float* grad = nullptr;
  float decay = 0;
  uint16_t* bf16 = nullptr;  // [n] or null: the updated elements, rounded as Cast does
  float* amax = nullptr;     // [1] or null: their largest magnitude, without NaN; of no other run
};

struct AdamW {
  std::span<const AdamWRun> runs;        // borrowed until the operation has run
  const StepOutcome* outcome = nullptr;  // [1], null: scale 1, and the update is made
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float correction1 = 1, correction2 = 1;  // c1, c2
};

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const SumOfSquares& request);
absl::Status Validate(const AdamW& request);

class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;
  virtual absl::Status Run(const SumOfSquares& request) = 0;
  virtual absl::Status Run(const AdamW& request) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_OPTIMIZER_OPS_H_

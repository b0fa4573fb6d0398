// The device memory that training takes, by purpose, planned before anything is allocated.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MEMORY_PLAN_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MEMORY_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <string>

namespace nibble {

// What families of operations keep of the device's memory for a model's passes, in bytes
// (kernels/ops/layer_ops.h).
struct OperationScratch {
  size_t norm = 0;
  size_t elementwise = 0;
  size_t token = 0;
  size_t attention = 0;
  size_t mamba = 0;

  // Makes it large enough for other passes, too.
  void Fit(const OperationScratch& other) {
    norm = std::max(norm, other.norm);
    elementwise = std::max(elementwise, other.elementwise);
    token = std::max(token, other.token);
    attention = std::max(attention, other.attention);
    mamba = std::max(mamba, other.mamba);
  }
  size_t total() const { return norm + elementwise + token + attention + mamba; }
};

struct MemoryPlan {
  // Outside the model.
  size_t fixed = 0;      // of the backend, its libraries, and batches
  size_t weights = 0;    // FP32
  size_t gradients = 0;  // FP32
  size_t moments = 0;    // of the optimizer
  // The model's, under a recipe and for a size of micro-batches.
  size_t working_weights = 0;  // in the formats of the recipe
  size_t activations = 0;      // kept for the backward pass, or passed from block to block
  size_t scratch = 0;          // of one operation or block at a time
  size_t operations = 0;       // OperationScratch of its passes

  size_t of_model() const { return working_weights + activations + scratch + operations; }
  size_t total() const { return fixed + weights + gradients + moments + of_model(); }
};

// "73.70 GiB: weights 3.81, gradients 3.81, moments 7.63, working weights 1.91, activations 55.37,
// scratch 0.89, operations 0.22, fixed 0.06".
std::string MemoryPlanText(const MemoryPlan& plan);
// "73.42 GiB", "12.50 MiB".
std::string BytesOfMemory(size_t bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MEMORY_PLAN_H_

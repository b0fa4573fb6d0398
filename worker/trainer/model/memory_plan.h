// The device memory that training takes, by purpose, planned before anything is allocated.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MEMORY_PLAN_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MEMORY_PLAN_H_

#include <cstddef>
#include <string>

namespace nibble {

struct MemoryPlan {
  // Outside the model.
  size_t weights = 0;    // FP32
  size_t gradients = 0;  // FP32
  size_t moments = 0;    // of the optimizer
  // The model's, under a recipe and for a size of micro-batches.
  size_t working_weights = 0;  // in the formats of the recipe
  size_t activations = 0;      // kept for the backward pass, or passed from block to block
  size_t scratch = 0;          // of one operation or block at a time

  size_t of_model() const { return working_weights + activations + scratch; }
  size_t total() const { return weights + gradients + moments + of_model(); }
};

// "73.42 GiB: weights 3.81, gradients 3.81, moments 7.63, working weights 1.91, activations 55.37,
// scratch 0.89".
std::string MemoryPlanText(const MemoryPlan& plan);
// "73.42 GiB", "12.50 MiB".
std::string BytesOfMemory(size_t bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MEMORY_PLAN_H_

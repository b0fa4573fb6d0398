// What every layer is told about the micro-batch that passes through it.
//
// Ownership: borrows. Thread-safety: a value.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_STEP_CONTEXT_H_
#define NIBBLE_WORKER_TRAINER_MODEL_STEP_CONTEXT_H_

#include <cstdint>

#include "kernels/ops/sequence.h"

namespace nibble {

struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;
  SequenceLayout layout;
  // Where the micro-batch's rows lie among those of the whole step over all ranks: random bits are
  // drawn by this place, so they do not depend on how the batch is divided.
  int64_t first_token = 0;
  int64_t batch_tokens = 0;
  // Weight gradients are written by the first micro-batch of a step and added to by the others.
  bool first_micro_batch = true;
  bool statistics = false;  // precision figures of every quantised operand

  int64_t tokens() const { return layout.tokens(); }
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_STEP_CONTEXT_H_

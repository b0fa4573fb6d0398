// Estimates one rank's memory in training from a model's outline: for choosing a machine and a
// batch, not for allocating.
//
// Not counted: the optimizer's and collectives' buffers, kernels' workspaces, the logits (computed
// in chunks of tokens), and the allocator's overhead.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_MODEL_MEMORY_H_
#define NIBBLE_MODEL_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/outline.h"

namespace nibble {

// In bytes. P is the number of parameters, L those of them that are weights of linears.
struct MemoryPerRank {
  // Sharded: each rank stores and updates its slice of ⌈P / ranks⌉.
  int64_t master = 0;   // FP32 weights: 4 · ⌈P / ranks⌉
  int64_t moments = 0;  // Adam's two, FP32: 8 · ⌈P / ranks⌉

  // Whole on every rank: summed over micro-batches, then reduced and scattered.
  int64_t gradients = 0;  // FP32: 4 · P

  // Working weights of the forward pass, whole on every rank; one of the two. The second is for a
  // recipe whose linears are all NVFP4 with packed weights: 4 bits per element and a scale of 8
  // bits per 16 elements.
  int64_t working_bf16 = 0;   // 2 · P
  int64_t working_nvfp4 = 0;  // 2 · (P − L) + ⌈L · 4.5 / 8⌉

  // Saved in the forward pass for the backward pass, for all tokens of one rank's micro-batch; one
  // of the two. Per token:
  //   block     2 · d_model    its input, on the residual stream
  //           + 2 · d_model    the norm's output
  //           + 4 or 8         the norm's 1/rms, or mean and 1/deviation, in FP32
  //           + its mixer's    MixerKind::saved_bytes
  //   ends      a block's norm (the first three lines) once, for the final norm and the head's
  //   input
  // With recompute a block saves its input only, and the block whose backward pass is running has
  // its other tensors again: all blocks' inputs + the ends + the largest block's other tensors.
  int64_t activations_saved = 0;
  int64_t activations_recomputed = 0;

  // The sum, with one of the working weights and one of the activations.
  int64_t Total(bool packed_weights, bool recompute) const {
    return master + moments + gradients + (packed_weights ? working_nvfp4 : working_bf16) +
           (recompute ? activations_recomputed : activations_saved);
  }
};

// `tokens`: of one rank's micro-batch. InvalidArgument naming the field, its value and the bound
// for ranks outside [1, 2^20] or tokens outside [1, 2^24].
absl::StatusOr<MemoryPerRank> EstimateMemory(const Outline& outline, int64_t ranks, int64_t tokens);

}  // namespace nibble

#endif  // NIBBLE_MODEL_MEMORY_H_

// Checks and measurements of attention and rotary positions on a card, against the CPU operations;
// at the sizes of training, of one key head. Each group of checks prints a line when it ends.
//
// Ownership: borrows. Thread-safety: none.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_CHECK_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_CHECK_H_

#include <string>
#include <string_view>

#include "kernels/cuda/layers/layer_check.h"

namespace nibble {

struct AttentionCheckOptions {
  bool large = true;  // also the sizes that need a card
  // Only these kernels: "rows" (rotary positions, caches), "simple", "mma", "hopper"; empty: all.
  std::string path;

  bool Wants(std::string_view name) const { return path.empty() || path == name; }
};
void CheckAttention(LayerCheck& check, const AttentionCheckOptions& options = {});
void TimeAttention(LayerCheck& check, const AttentionCheckOptions& options = {});

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_CHECK_H_

// A model small enough to count by hand, for tests.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_MODEL_OUTLINE_TESTING_H_
#define NIBBLE_MODEL_OUTLINE_TESTING_H_

#include <string>
#include <utility>

#include "model/model_spec.h"

namespace nibble {

// By default one block of each mixer. d_inner 6, conv_dim 16, in_proj rows 24; qkv rows 16.
inline ModelSpec HandModel(std::string pattern = "M*-") {
  return {.name = "hand",
          .pattern = std::move(pattern),
          .vocab = 10,
          .d_model = 8,
          .d_ff = 16,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 4,
          .mamba_heads = 2,
          .mamba_head_dim = 3,
          .mamba_groups = 1,
          .mamba_state = 5,
          .conv_width = 4,
          .chunk = 4};
}

}  // namespace nibble

#endif  // NIBBLE_MODEL_OUTLINE_TESTING_H_

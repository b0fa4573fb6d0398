// What one Mamba-2 layer keeps of a sequence: the inputs of its convolution that the next token
// still sees, and the recurrent state. FP32, of one size whatever the sequence's length.
//
// Ownership: owns its numbers. Thread-safety: heads and channels may be written by several threads
// at once.
#ifndef NIBBLE_WORKER_INFER_MIXERS_MAMBA2_STATE_H_
#define NIBBLE_WORKER_INFER_MIXERS_MAMBA2_STATE_H_

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "worker/infer/sequence_state.h"

namespace nibble {

class Mamba2State : public LayerState {
 public:
  // Of an empty sequence: zeros, which is what lies before its first token.
  explicit Mamba2State(const ModelSpec& spec)
      : window_(static_cast<size_t>((spec.conv_width - 1) * spec.conv_dim())),
        state_(static_cast<size_t>(spec.d_inner() * spec.mamba_state)) {}

  void CopyFrom(const LayerState& other, int64_t) override {
    const auto& from = static_cast<const Mamba2State&>(other);
    window_ = from.window_;
    state_ = from.state_;
  }
  int64_t bytes() const override {
    return static_cast<int64_t>((window_.size() + state_.size()) * sizeof(float));
  }

  float* window() { return window_.data(); }  // [width − 1, conv_dim], the oldest token first
  float* state() { return state_.data(); }    // [heads, state, head_dim]

 private:
  std::vector<float> window_, state_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_MIXERS_MAMBA2_STATE_H_

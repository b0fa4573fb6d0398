// The state of one Mamba-2 layer of one sequence: the last inputs of its convolution, and the
// recurrent state. FP32, of a size independent of the sequence's length.
//
// Ownership: owns its numbers. Thread-safety: several threads may write different heads and
// channels.
#ifndef NIBBLE_WORKER_INFER_MAMBA2_DECODER_H_
#define NIBBLE_WORKER_INFER_MAMBA2_DECODER_H_

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "worker/infer/decode_mixer.h"

namespace nibble {

class Mamba2State : public LayerState {
 public:
  // The state of an empty sequence: zeros.
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

#endif  // NIBBLE_WORKER_INFER_MAMBA2_DECODER_H_

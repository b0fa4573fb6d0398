// One mixer of a block: the layer between the norm and the residual addition. A new mixer is one
// file in mixers/ that implements this, its factory below and one line in mixer.cc (and its
// description in model/mixers).
//
// Ownership: mixers borrow device and parameters. Thread-safety: none; one queue.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MIXER_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MIXER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/model/linear.h"

namespace nibble {

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Its linear layers, in the order of the outline. The model sets their recipes and has them
  // prepare their weights.
  virtual std::vector<Linear*> linears() = 0;
  // Whether Backward() reads the input again.
  virtual bool keeps_input() const = 0;
  // After the linears have their recipes. Allocates saved tensors and scratch for `tokens` rows.
  virtual absl::Status Allocate(int64_t tokens, const Places& places) = 0;

  // y = mixer(x). x: [tokens, d_model], y: [tokens, d_model].
  virtual absl::Status Forward(const StepContext& context, const ConstMatrix& x,
                               const MutableMatrix& y) = 0;
  // Computes dx from dy and adds to the gradients of the parameters. x is read if keeps_input(). dx
  // and dy do not overlap.
  virtual absl::Status Backward(const StepContext& context, const ConstMatrix& x,
                                const ConstMatrix& dy, const MutableMatrix& dx) = 0;
};

// The mixer of block `block`. Internal for an unknown symbol.
absl::StatusOr<std::unique_ptr<Mixer>> MakeMixer(const Device& device, const Parameters& parameters,
                                                 int64_t block, DType dtype);

// The factories that MakeMixer() chooses from.
//
// Causal grouped-query attention: qkv projection, rotary positions, attention, output projection.
absl::StatusOr<std::unique_ptr<Mixer>> MakeAttentionMixer(const Device& device,
                                                          const Parameters& parameters,
                                                          int64_t block, DType dtype);

// The Mamba-2 mixer: in_proj to z | xBC | dt, convolution and SiLU over xBC, scan, gated norm,
// out_proj.
absl::StatusOr<std::unique_ptr<Mixer>> MakeMamba2Mixer(const Device& device,
                                                       const Parameters& parameters, int64_t block,
                                                       DType dtype);

// The feed-forward mixer: up-projection, non-linearity, down-projection.
absl::StatusOr<std::unique_ptr<Mixer>> MakeMlpMixer(const Device& device,
                                                    const Parameters& parameters, int64_t block,
                                                    DType dtype);

// For mixers: the layer "blocks.<block>.<kind>" and the parameter "blocks.<block>.<name>".
// Internal if the outline lacks it.
absl::StatusOr<int64_t> FindLinear(const Outline& outline, int64_t block, const std::string& kind);
absl::StatusOr<int64_t> FindBlockParam(const Outline& outline, int64_t block,
                                       const std::string& name);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MIXER_H_

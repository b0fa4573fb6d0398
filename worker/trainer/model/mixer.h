// A mixer layer of a block: the layer between the norm and the residual addition. Its class states
// the forward pass once, for whole sequences (training, evaluation) and for tokens that continue
// sequences (decoding); the operations of kernels/ops take either layout.
//
// A new mixer is
//   model/<mixer>.cc, a line in model/mixers.cc             its MixerKind; sizes in ModelSpec
//   kernels/ops/<mixer>_ops.h, an accessor in LayerOps      its operations, if they are new
//   kernels/cpu/layers/                                     their kernels
//   mixers/<mixer>_mixer.cc, two lines in mixer.cc          this class
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
#include "kernels/ops/norm_ops.h"
#include "kernels/ops/sequence.h"
#include "worker/trainer/model/linear.h"
#include "worker/trainer/model/memory_plan.h"
#include "worker/trainer/model/sequence_state.h"

namespace nibble {

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Its linear layers, in the order of the outline. The model sets their recipes and has them
  // prepare their weights.
  virtual std::vector<Linear*> linears() = 0;
  // Whether Backward() reads the input again.
  virtual bool keeps_input() const = 0;
  // After the linears have their recipes. Allocate the tensors of the passes, for up to `tokens`
  // rows; AllocateBackward() only for training, after the other.
  virtual absl::Status AllocateForward(int64_t tokens, const Places& places) = 0;
  virtual absl::Status AllocateBackward(int64_t tokens, const Places& places) = 0;

  // What the operations of its backward pass keep; after AllocateBackward().
  virtual OperationScratch BackwardScratch(const SequenceLayout& layout) const = 0;

  // The state of an empty sequence that may grow to `capacity` tokens; null if the mixer keeps no
  // state.
  virtual absl::StatusOr<std::unique_ptr<MixerState>> NewState(int64_t capacity) = 0;

  // y = mixer(x), for context.layout: whole sequences, or continuations, whose states advance. x:
  // [tokens, d_model], y: [tokens, d_model].
  virtual absl::Status Forward(const StepContext& context, const ConstMatrix& x,
                               const MutableMatrix& y) = 0;
  // Computes dx from dy and adds to the gradients of the parameters. x is read if keeps_input(). dx
  // and dy do not overlap.
  virtual absl::Status Backward(const StepContext& context, const ConstMatrix& x,
                                const ConstMatrix& dy, const MutableMatrix& dx) = 0;
};

using MixerFactory = absl::StatusOr<std::unique_ptr<Mixer>>(const Device& device,
                                                            const ParameterView& parameters,
                                                            int64_t block, DType dtype);
// The mixer of block `block`. Internal for an unknown symbol.
MixerFactory MakeMixer;

// For mixers: the layer "blocks.<block>.<kind>", Internal if the outline lacks it, and the index of
// the parameter "blocks.<block>.<name>", NotFound if it does.
absl::StatusOr<Linear> FindLinear(const Device& device, const ParameterView& parameters,
                                  int64_t block, const std::string& kind, DType dtype);
absl::StatusOr<int64_t> FindBlockParam(const Outline& outline, int64_t block,
                                       const std::string& name);

// A norm and where its gradients go.
struct NormLayer {
  NormParams params;
  float* dweight = nullptr;
  float* dbias = nullptr;
};
// The norm "<prefix>.weight" (and ".bias"). NotFound if the outline lacks it.
absl::StatusOr<NormLayer> FindNorm(const ParameterView& parameters, const std::string& prefix);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MIXER_H_

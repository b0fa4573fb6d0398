// A linear layer, the only place that quantises: it takes the operands of its three GEMMs from its
// recipe and makes one call per tensor that writes every quantised copy needed.
//
// Ownership: borrows the device and the parameters; copies live in the memories of Places.
// Thread-safety: none; runs on the device's queue.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_
#define NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/sequence.h"
#include "kernels/tensor/quantized_tensor.h"
#include "recipe/recipe.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/region.h"

namespace nibble {

// Describes the micro-batch that passes through the layers.
struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;
  SequenceLayout layout;
  // The position of the micro-batch's rows in the whole step over all ranks. Random bits are drawn
  // by this position, so that they do not depend on how the batch is divided.
  int64_t first_token = 0;
  int64_t batch_tokens = 0;
  // Weight gradients are written by the first micro-batch of a step and added to by the others.
  bool first_micro_batch = true;
  bool statistics = false;  // precision figures of every quantised operand

  int64_t tokens() const { return layout.tokens(); }
};

// Statistics of one quantised operand.
struct OperandFigures {
  int64_t linear = 0;  // index in Outline::linears
  OperandRole role = OperandRole::kFpropActivation;
  int64_t elements = 0;
  QuantHead head;
};

class Linear {
 public:
  // `linear`: index in the outline. `dtype`: of activations; FP32 takes high-precision recipes
  // only.
  Linear(const Device& device, const Parameters& parameters, int64_t linear, DType dtype);

  const LinearInfo& info() const { return info_; }
  float* bias() const { return bias_; }

  // Before Allocate(). InvalidArgument for a quantised operand if activations are FP32.
  absl::Status SetRecipe(const LayerRecipe& recipe);
  // Whether Backward() reads x again. If not, its memory may be reused after Forward().
  bool keeps_input() const { return !recipe_[OperandRole::kWgradActivation].has_value(); }
  absl::Status Allocate(int64_t tokens, const Places& places);

  // Makes the working copies of the FP32 weights; once per step, before the first Forward().
  absl::Status PrepareWeights(const StepContext& context);

  // y = x·Wᵀ, without the bias. x: [tokens, in], y: [tokens, out].
  absl::Status Forward(const StepContext& context, const ConstMatrix& x, const MutableMatrix& y);
  absl::Status AddBias(const MutableMatrix& y);
  // dx = dy·W, dW (+)= dyᵀ·x, dbias += Σ dy. x is read if keeps_input().
  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx);

  // Appends the figures of the operands quantised last. Waits for the queue.
  absl::Status ReadFigures(std::vector<OperandFigures>& out) const;

 private:
  struct Copy {
    std::optional<QuantizedTensor> tensor;
    OperandRole role = OperandRole::kFpropActivation;
  };

  absl::Status Create(Copy& copy, Memory& memory, Memory& figures, OperandRole role,
                      Orientation orientation, int64_t rows, int64_t cols);
  CopyRequest Request(Copy& copy, const StepContext& context) const;
  GemmSource WeightSource(OperandRole role) const;

  Device device_;
  int64_t index_;
  LinearInfo info_;
  DType dtype_;
  float* weight_;
  float* dweight_;
  float* bias_ = nullptr;
  float* dbias_ = nullptr;

  LayerRecipe recipe_;
  bool weight_serves_both_ = false;  // one square quantisation for Fprop and Dgrad
  Copy fprop_x_, fprop_w_, dgrad_dy_, dgrad_w_, wgrad_dy_, wgrad_x_;
  Buffer bf16_weight_;  // [out, in], where an operand is BF16
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_

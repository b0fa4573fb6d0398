// A linear layer, the only place that quantises: it asks its recipe for the operands of its three
// GEMMs and makes one call per tensor that writes every copy needed.
//
// Ownership: borrows the device and the parameters; copies live in the memories of Places.
// Thread-safety: none; runs on the device's queue.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_
#define NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/tensor/quantized_tensor.h"
#include "recipe/recipe.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/places.h"
#include "worker/trainer/model/step_context.h"

namespace nibble {

// What one quantised operand reported.
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

  // Before Allocate. InvalidArgument for a quantised operand where activations are FP32.
  absl::Status SetRecipe(const LayerRecipe& recipe);
  // Whether Backward reads x again. Otherwise its memory may be used again after Forward.
  bool keeps_input() const { return !recipe_[OperandRole::kWgradActivation].has_value(); }
  absl::Status Allocate(int64_t tokens, const Places& places);

  // Working copies from the FP32 weights; once per step, before the first Forward.
  absl::Status PrepareWeights(const StepContext& context);

  // y = x·Wᵀ, without the bias. x: [tokens, in], y: [tokens, out].
  absl::Status Forward(const StepContext& context, const ConstMatrix& x, const MutableMatrix& y);
  absl::Status AddBias(const MutableMatrix& y);
  // dx = dy·W, dW (+)= dyᵀ·x, dbias += Σ dy. x is read where keeps_input().
  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx);

  // Appends the figures of what was quantised last. Waits for the queue.
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

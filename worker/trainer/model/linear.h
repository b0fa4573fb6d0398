// A linear layer, the only place that quantises: its recipe determines the operands of its three
// GEMMs, and one call per tensor writes every quantised copy needed. In inference it has no recipe
// and reads the weight as it is stored.
//
// Ownership: borrows the device and the parameters; copies live in the memories of Places.
// Thread-safety: none; runs on the device's queue.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_
#define NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/gemm/gemm.h"
#include "kernels/ops/sequence.h"
#include "kernels/tensor/quantized_tensor.h"
#include "recipe/operand_roles.h"
#include "recipe/recipe.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/region.h"
#include "worker/trainer/model/sequence_state.h"

namespace nibble {

// Describes the rows that pass through the layers: a micro-batch of training, or tokens that
// continue sequences.
struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;
  // The same in the device's memory, from which random bits then take it, so that recorded passes
  // draw other bits each time; or null.
  const uint64_t* step_on_device = nullptr;
  SequenceLayout layout;
  // The position of the micro-batch's rows in the whole step over all ranks. Random bits are drawn
  // by this position, so that they do not depend on how the batch is divided.
  int64_t first_token = 0;
  int64_t batch_tokens = 0;
  // Overwrites the gradients of linear weights, as the first micro-batch of a step does; otherwise
  // adds to them.
  bool new_gradients = true;
  bool statistics = false;                    // precision figures of every quantised operand
  std::span<SequenceState* const> sequences;  // [layout.continued.size()]

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
  // only. A weight stored in `dtype` is used in place.
  Linear(const Device& device, const ParameterView& parameters, int64_t linear, DType dtype);

  const LinearInfo& info() const { return info_; }
  const LayerRecipe& recipe() const { return recipe_; }
  // How the engine multiplies under the recipe.
  const GemmPlan& plan(LinearGemm gemm) const { return plans_[static_cast<size_t>(gemm)]; }
  float* bias() const { return bias_; }

  // Ranks gather the weight in strips of Parameters::kStripRows rows. Before SetRecipe().
  void GatherInStrips() { in_strips_ = true; }
  // Before Allocate(). InvalidArgument for a quantised operand if activations are FP32.
  absl::Status SetRecipe(const LayerRecipe& recipe);
  // Whether Backward() reads x. If not, its memory may be reused after Forward().
  bool keeps_input() const { return !recipe_[OperandRole::kWgradActivation].has_value(); }
  absl::Status Allocate(int64_t tokens, const Places& places);

  // Makes the working copies of an FP32 weight; once per step, before the first Forward(). In
  // inference there are none.
  absl::Status PrepareWeights(const StepContext& context);

  // If the weight is gathered in strips, and one quantisation in square blocks serves both
  // products: its only copy, codes and scales, which strips of other ranks can be copied into; null
  // otherwise. GEMMs expand it, with the bits of the copy that it stands for. Valid until the next
  // Allocate().
  QuantizedTensor* packed_weight() { return packs_weight_ ? &*fprop_w_.tensor : nullptr; }
  // Strips arrive: PrepareWeights() leaves the copy alone.
  void set_packed_weight_arrives(bool arrives) { packed_weight_arrives_ = arrives; }
  // rows: of the weight. out: like packed_weight(), of these rows. amax: of the whole weight; null:
  // finds that of the rows.
  absl::Status QuantizeStrip(const ConstMatrix& rows, QuantizedTensor& out, const float* amax);

  // y = x·Wᵀ, without the bias. x: [tokens, in], y: [tokens, out].
  absl::Status Forward(const StepContext& context, const ConstMatrix& x, const MutableMatrix& y);
  absl::Status AddBias(const MutableMatrix& y);
  // dx = dy·W, dW (+)= dyᵀ·x, dbias += Σ dy. x is read if keeps_input().
  absl::Status Backward(const StepContext& context, const ConstMatrix& x, const ConstMatrix& dy,
                        const MutableMatrix& dx);

  // Appends the figures of its quantised operands. `heads`: the host's copy of the region of heads,
  // which begins at `figures`.
  void AppendFigures(const char* heads, const char* figures,
                     std::vector<OperandFigures>& out) const;

 private:
  struct Copy {
    std::optional<QuantizedTensor> tensor;
    OperandRole role = OperandRole::kFpropActivation;
  };

  OperandPlan& PlanOf(OperandRole role);
  // Asks the engine how it multiplies the operands of the recipe.
  void PlanProducts();
  absl::Status Create(Copy& copy, Memory& memory, Memory& figures, OperandRole role,
                      Orientation orientation, int64_t rows, int64_t cols);
  CopyRequest Request(Copy& copy, const StepContext& context) const;
  GemmSource WeightSource(OperandRole role) const;

  Device device_;
  int64_t index_;
  LinearInfo info_;
  DType dtype_;
  ConstMatrix weight_;  // [out, in]
  float* dweight_;
  float* bias_ = nullptr;
  float* dbias_ = nullptr;

  LayerRecipe recipe_;
  std::array<GemmPlan, kLinearGemms> plans_;
  // Fprop and Dgrad share one quantisation in square blocks, unless codes are multiplied: each GEMM
  // then needs them along its own contracted dimension.
  bool weight_serves_both_ = false;
  bool in_strips_ = false;
  bool packs_weight_ = false;  // see packed_weight()
  bool packed_weight_arrives_ = false;
  Copy fprop_x_, fprop_w_, dgrad_dy_, dgrad_w_, wgrad_dy_, wgrad_x_;
  Buffer bf16_weight_;  // [out, in], of an FP32 weight if an operand is BF16
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_

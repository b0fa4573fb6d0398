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
  // The first pass since Model::BeginStep(): makes the working copies of weights that ranks gather.
  bool new_weights = true;
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

// The fewest rows of a strip, of Parameters::kStripRows, whose owners can quantise every weight
// that is rounded to nearest under a recipe.
int64_t StripRowsOf(const ResolvedRecipe& recipe);

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

  // Ranks gather the weight, in strips of this many rows; 0: its parts end anywhere. Before
  // SetRecipe().
  void Gather(int64_t strip_rows) {
    gathered_ = true;
    strip_rows_ = strip_rows;
  }
  // Before Allocate(). InvalidArgument for a quantised operand if activations are FP32.
  absl::Status SetRecipe(const LayerRecipe& recipe);
  // Whether Backward() reads x. If not, its memory may be reused after Forward().
  bool keeps_input() const { return !recipe_[OperandRole::kWgradActivation].has_value(); }
  absl::Status Allocate(int64_t tokens, const Places& places);

  // Makes the working copies of an FP32 weight; once per step, before the first Forward(). In
  // inference there are none.
  absl::Status PrepareWeights(const StepContext& context);

  // What the update of the weight may write for the next step, of a weight that is not gathered:
  // its BF16 copy, and the amax from which its quantised copies are scaled. Valid until the next
  // Allocate().
  WorkingCopy updated_copy();
  // Whether updated_copy() is that of the present weight: PrepareWeights() then takes it as it is.
  void set_copy_is_current(bool current) { bf16_arrives_ = amax_is_known_ = current; }

  // The working copies of a weight that is gathered, which those of other ranks' rows can be copied
  // into. Valid until the next Allocate().
  struct WorkingCopies {
    // If owners can quantise every quantised copy strip by strip, with the bits of the whole
    // weight's: of both products, or of Fprop (a row copy), and of Dgrad (a column copy). They are
    // codes and scales alone: GEMMs expand them, with the bits of the copy that these stand for.
    QuantizedTensor* row = nullptr;
    QuantizedTensor* column = nullptr;
    uint16_t* bf16 = nullptr;   // [out, in], if an operand is BF16
    bool reads_weight = false;  // there are other copies, or none: of the weight itself
  };
  WorkingCopies working_copies();
  // Copies arrive: PrepareWeights() leaves them alone.
  void set_packed_arrive(bool arrive) { packed_arrive_ = arrive; }
  void set_bf16_arrives(bool arrives) { bf16_arrives_ = arrives; }
  // rows: a strip of the weight. Outputs: of these rows, like the working copies; null: not wanted.
  // amaxes: of the whole weight's row and column copy; null: finds those of the strip.
  absl::Status QuantizeStrip(const ConstMatrix& rows, QuantizedTensor* row, QuantizedTensor* column,
                             const float* amaxes, bool statistics);

  // Whether Forward() can compute the squared ReLU of its input while it quantises it, for all
  // who read it.
  bool quantizes_squared_relu() const;
  // y = x·Wᵀ, without the bias. x: [tokens, in], y: [tokens, out]. squared_relu: x stands for its
  // squared ReLU.
  absl::Status Forward(const StepContext& context, const ConstMatrix& x, const MutableMatrix& y,
                       bool squared_relu = false);
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
  // The same for a quantised copy of the weight.
  CopyRequest WeightRequest(Copy& copy, const StepContext& context);
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
  bool gathered_ = false;
  int64_t strip_rows_ = 0;
  bool packs_weight_ = false;  // quantised copies of the weight are codes and scales alone
  bool packed_arrive_ = false, bf16_arrives_ = false;
  bool amax_is_known_ = false;
  Copy fprop_x_, fprop_w_, dgrad_dy_, dgrad_w_, wgrad_dy_, wgrad_x_;
  Buffer bf16_weight_;  // [out, in], of an FP32 weight if an operand is BF16
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_LINEAR_H_

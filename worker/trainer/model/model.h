// The model at work: embedding, blocks, head; forward and hand-written backward over one
// micro-batch at a time, in memory planned once per recipe.
//
// The residual stream x_i enters block i; a block adds mixer(norm(x_i)). Saved for the backward
// pass: every x_i, and what each mixer says it needs, or (recompute) only the x_i: a block then
// runs forward again just before its backward pass, with bitwise the same results.
//
// Ownership: borrows device and parameters; owns its activations and working weights.
// Thread-safety: none; everything enqueues on the device's queue and returns.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MODEL_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "recipe/recipe.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/head.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/step_context.h"
#include "worker/trainer/model/tensors.h"

namespace nibble {

// One micro-batch, in the backend's memory. The layout comes with StepContext.
struct ModelBatch {
  const int32_t* tokens = nullptr;   // [tokens]
  const int32_t* targets = nullptr;  // [tokens], -1 counts for nothing
};

class Model {
 public:
  struct Options {
    DType activations = DType::kBf16;  // FP32: the oracle, high-precision recipes only
    int64_t sequences = 0;             // of a micro-batch
    int64_t length = 0;
    bool recompute = false;
  };
  static absl::StatusOr<std::unique_ptr<Model>> Create(const Device& device, Parameters& parameters,
                                                       const ResolvedRecipe& recipe,
                                                       const Options& options);

  // Between steps: plans the memory anew where the recipe differs. Errors leave the model without
  // a recipe: only SetRecipe may follow.
  absl::Status SetRecipe(const ResolvedRecipe& recipe);

  // Working weights from the FP32 ones; gradients that are only added to become zero.
  absl::Status BeginStep(const StepContext& context);
  // loss: [tokens] out. The head's part of the backward pass is done here too, chunk by chunk:
  // gradients are those of scale · Σ loss.
  absl::Status Forward(const StepContext& context, const ModelBatch& batch, float scale,
                       float* loss);
  // After Forward of the same micro-batch.
  absl::Status Backward(const StepContext& context, const ModelBatch& batch);
  // After BeginStep: the loss alone, under the same recipe.
  absl::Status Evaluate(const StepContext& context, const ModelBatch& batch, float* loss);
  // After BeginStep: logits [tokens, vocab] FP32.
  absl::Status Logits(const StepContext& context, const ModelBatch& batch,
                      const MutableMatrix& logits);

  // Of the operands quantised last, in the order of the outline's linears. Waits for the queue.
  absl::Status ReadFigures(std::vector<OperandFigures>& out) const;

  struct MemoryUse {
    size_t working_weights = 0;  // copies for a step, and figures
    size_t activations = 0;      // saved for the backward pass
    size_t scratch = 0;
  };
  MemoryUse memory_use() const;

 private:
  struct Block {
    NormParams norm;
    float* dnorm_weight = nullptr;
    float* dnorm_bias = nullptr;
    std::unique_ptr<Mixer> mixer;
    ActivationBuffer input;   // x_i: [tokens, d_model]
    ActivationBuffer normed;  // [tokens, d_model], where the mixer keeps its input
    Buffer mean, rstd;        // [tokens]
  };

  Model(const Device& device, Parameters& parameters, const Options& options, Head head);

  absl::Status Build();
  absl::Status FindNorm(const std::string& prefix, Block& block);
  absl::Status Plan();
  absl::Status RunBlocks(const StepContext& context, const ModelBatch& batch);
  absl::Status ForwardBlock(const StepContext& context, int64_t i, bool again);
  const ActivationBuffer& Normed(const Block& block) const {
    return block.mixer->keeps_input() ? block.normed : normed_;
  }

  Device device_;
  Parameters& parameters_;
  Options options_;
  int64_t tokens_;
  int64_t d_model_;
  // Before everything that holds a part of one: buffers give back what they took.
  Region step_, kept_, saved_, scratch_, transient_;
  std::vector<Block> blocks_;
  Block final_;  // the norm before the head; no mixer
  Head head_;
  int64_t embedding_ = -1, positions_ = -1;  // parameters

  ResolvedRecipe recipe_;
  bool planned_ = false;
  ActivationBuffer normed_;  // of mixers that do not keep it
  ActivationBuffer mixed_;   // a mixer's output
  ActivationBuffer last_;    // after the final norm
  ActivationBuffer dx_;      // gradient of the residual stream
  ActivationBuffer dnormed_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MODEL_H_

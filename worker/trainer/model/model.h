// The model: embedding, blocks and head, with hand-written backward passes, over one micro-batch at
// a time, in memory planned once per recipe.
//
// Ownership: borrows device and parameters; owns its activations and working weights.
// Thread-safety: none; everything enqueues on the device's queue and returns.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_MODEL_H_
#define NIBBLE_WORKER_TRAINER_MODEL_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "recipe/recipe.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/head.h"
#include "worker/trainer/model/linear.h"
#include "worker/trainer/model/memory_plan.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/region.h"

namespace nibble {

// How a GEMM of linear layers is computed under the recipe in effect. Layers whose GEMMs are
// computed alike are counted together.
struct ProductUse {
  LinearGemm gemm = LinearGemm::kFprop;
  std::string path;        // as GemmPlan
  std::string reason;      // as GemmPlan
  bool quantized = false;  // an operand is
  bool native = false;     // as GemmPlan
  int64_t linears = 0;
};

// One micro-batch, in the backend's memory. The layout comes with StepContext.
struct ModelBatch {
  const int32_t* tokens = nullptr;   // [tokens]
  const int32_t* targets = nullptr;  // [tokens], -1 is ignored
};

// Called around each part of a pass, to enqueue the exchanges between ranks that must precede or
// follow it. Part -1 is the embedding, spec.blocks() the final norm with the head.
class PassHooks {
 public:
  virtual ~PassHooks() = default;
  // Before its weights are read in a forward pass, also in one without a backward pass.
  virtual absl::Status BeforeForward(int64_t) { return absl::OkStatus(); }
  // Before its weights are read and its gradients written. Not called for the head, whose gradients
  // Model::Forward() writes.
  virtual absl::Status BeforeBackward(int64_t) { return absl::OkStatus(); }
  // After its backward pass; that of the head includes the final norm's.
  virtual absl::Status AfterBackward(int64_t) { return absl::OkStatus(); }
};

// The residual stream x_i enters block i, which adds mixer(norm(x_i)). The backward pass needs
// every x_i and the saved tensors of each mixer or, with `recompute`, only every x_i: each block
// then runs forward again just before its backward pass, with the same results bit for bit.
class Model {
 public:
  struct Options {
    DType activations = DType::kBf16;  // FP32: the oracle, high-precision recipes only
    int64_t sequences = 0;             // of a micro-batch
    int64_t length = 0;
    bool recompute = false;
    // The gradients of every micro-batch are new, not added to those before it.
    bool new_gradients = false;
  };
  static absl::StatusOr<std::unique_ptr<Model>> Create(const Device& device, Parameters& parameters,
                                                       const ResolvedRecipe& recipe,
                                                       const Options& options);

  // The model's parts of the plan that Create() would make; allocates nothing.
  static absl::StatusOr<MemoryPlan> Measure(const Device& device, Parameters& parameters,
                                            const ResolvedRecipe& recipe, const Options& options);
  // The plan of the recipe in effect, or of the one that was refused last.
  MemoryPlan memory() const;

  // Between steps: plans the memory anew if the recipe differs. After an error the model has no
  // recipe and only SetRecipe() may be called. ResourceExhausted if the plan does not fit into what
  // the memory has left; it names both.
  absl::Status SetRecipe(const ResolvedRecipe& recipe);

  // By GEMM, in the order of the layers.
  std::vector<ProductUse> Products() const;

  // Called in every pass from now on. Borrowed; null: none.
  void set_hooks(PassHooks* hooks) { hooks_ = hooks != nullptr ? hooks : &no_hooks_; }

  // In the order of the outline.
  std::vector<Linear*> linears() const;
  Head& head() { return head_; }
  // By parameter: whether passes read nothing but its BF16 rounding. False for weights of linear
  // layers.
  std::vector<bool> ReadInBf16() const;

  // By parameter: the working copies of weights that are not gathered, which the update may write
  // for the next step. Valid until the next SetRecipe().
  std::vector<WorkingCopy> UpdatedCopies() const;
  // Whether these copies match the present weights; if not, BeginStep() makes them.
  void SetCopiesAreCurrent(bool current);

  // Makes the working copies of the weights, and zeroes gradients that are only accumulated, with
  // two exceptions:
  //   weights that ranks gather: the first pass makes the copies of each block before it runs the
  //     block; if weights take turns, every pass does, because all buckets share the memory
  //   gradients that take turns or are new in each micro-batch: a pass zeroes those of a bucket
  //     before it writes them
  absl::Status BeginStep(const StepContext& context);
  // loss: [tokens], output. Also runs the head's backward pass, chunk by chunk; gradients are those
  // of scale · Σ loss.
  absl::Status Forward(const StepContext& context, const ModelBatch& batch, float scale,
                       float* loss);
  // After Forward() of the same micro-batch.
  absl::Status Backward(const StepContext& context, const ModelBatch& batch);
  // After BeginStep(): only the loss, with the same recipe.
  absl::Status Evaluate(const StepContext& context, const ModelBatch& batch, float* loss);
  // After BeginStep(): logits [tokens, vocab] FP32.
  absl::Status Logits(const StepContext& context, const ModelBatch& batch,
                      const MutableMatrix& logits);

  // After Backward(): adds the NaN and infinities of the operands quantised last to `numbers`, and
  // to counts of this step by operand.
  absl::Status CountNonFinite(StepNumbers* numbers);

  // The figures of the operands quantised last: CopyFigures() enqueues a copy of figure_bytes(),
  // FiguresOf() reads it on the host, in the order of the outline's linears.
  size_t figure_bytes() const { return figures_.bytes(); }
  absl::Status CopyFigures(Queue& queue, void* pinned) const;
  std::vector<OperandFigures> FiguresOf(const void* copied) const;
  // Both at once. Waits for the queue.
  absl::StatusOr<std::vector<OperandFigures>> ReadFigures() const;
  // The same, but only non_finite is filled in, with the counts of this step. Waits for the queue.
  absl::StatusOr<std::vector<OperandFigures>> ReadNonFinite() const;

  // Bytes saved for the backward pass.
  size_t activation_bytes() const { return kept_.bytes() + saved_.bytes(); }

 private:
  struct Block {
    NormLayer norm;
    std::unique_ptr<Mixer> mixer;
    ActivationBuffer input;   // x_i: [tokens, d_model]
    ActivationBuffer normed;  // [tokens, d_model], if the mixer keeps its input
    Buffer mean, rstd;        // [tokens]
  };

  Model(const Device& device, Parameters& parameters, const Options& options, Head head);
  static absl::StatusOr<std::unique_ptr<Model>> Make(const Device& device, Parameters& parameters,
                                                     const Options& options);
  // Plans without allocating: afterwards the regions know their sizes.
  absl::Status Measure(const ResolvedRecipe& recipe);

  int64_t heads() const { return static_cast<int64_t>(figures_.bytes() / Region::kAlign); }
  std::array<Region*, 6> Regions() {
    return {&step_, &figures_, &kept_, &saved_, &scratch_, &transient_};
  }
  absl::Status Build();
  absl::Status Plan();
  // If weights are gathered: makes the working copies of a part, unless those of an earlier pass
  // are still in memory.
  absl::Status PrepareWeights(const StepContext& context, int64_t part);
  void PlanZeros();
  // Zeroes the gradients of a bucket that are only accumulated, and the gaps between them.
  absl::Status ZeroGradients(int64_t bucket);
  // Does that for the buckets that the backward pass begins to write in this part, unless
  // BeginStep() has done it.
  absl::Status BeginGradients(int64_t part);
  bool zeroes_by_part() const {
    return parameters_.gradients_take_turns() || options_.new_gradients;
  }
  OperationScratch BackwardScratch() const;
  NormBackward BackwardOf(const Block& block, const ConstMatrix& residual) const;
  EmbeddingBackward EmbeddingBackwardOf(const SequenceLayout& layout, const int32_t* tokens) const;
  absl::Status RunBlocks(const StepContext& context, const ModelBatch& batch);
  absl::Status ForwardBlock(const StepContext& context, int64_t i, bool again);
  const ActivationBuffer& Normed(const Block& block) const {
    return block.mixer->keeps_input() ? block.normed : normed_;
  }

  struct Range {
    int64_t first, elements;  // of a bucket
  };

  Device device_;
  Parameters& parameters_;
  Options options_;
  PassHooks no_hooks_;
  PassHooks* hooks_ = &no_hooks_;
  int64_t tokens_;
  int64_t d_model_;
  // Declared before everything with a buffer in them: buffers are destroyed first.
  Region step_, figures_, kept_, saved_, scratch_, transient_;
  std::vector<Block> blocks_;
  Block final_;  // the norm before the head; no mixer
  Head head_;
  int64_t embedding_ = -1, positions_ = -1;  // parameters
  std::vector<std::vector<Range>> zeros_;    // by bucket: what ZeroGradients() zeroes

  ResolvedRecipe recipe_;
  bool planned_ = false;
  bool weight_statistics_ = false;  // of the step's quantised weights
  OperationScratch operations_;     // of the passes
  size_t operations_kept_ = 0;      // of passes that have run
  Buffer non_finite_;               // [heads] uint64, of this step
  ActivationBuffer normed_;         // of mixers that do not keep it
  ActivationBuffer mixed_;          // a mixer's output
  ActivationBuffer last_;           // after the final norm
  ActivationBuffer dx_;             // gradient of the residual stream
  ActivationBuffer dnormed_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_MODEL_H_

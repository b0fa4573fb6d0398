// The tensors that an export writes: each with the source of its bytes and the file it goes to.
//
// Nvfp4Weights quantises weights of linears to NVFP4 as inference engines read it. It uses the
// quantiser of training's Fprop on the same FP32 weights, so codes and block scales are bitwise
// training's.
//
// Ownership: producers borrow the source and share a cache of the parameter read last; Nvfp4Weights
// borrows the source and owns the codes and scales of one parameter at a time.
// Thread-safety: none; producers run one at a time.
#ifndef NIBBLE_WORKER_INTEROP_TENSOR_PLAN_H_
#define NIBBLE_WORKER_INTEROP_TENSOR_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"
#include "common/safetensors/writer.h"
#include "kernels/ops/backend.h"
#include "kernels/tensor/quantized_tensor.h"
#include "model/outline.h"
#include "recipe/recipe.h"
#include "worker/interop/hf_layout.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// One per linear of the outline: how its weight is quantised in Fprop, or empty if it stays in high
// precision.
//
// InvalidArgument if the recipe is of another model. FailedPrecondition, naming the layer, for
// settings that the files cannot express (another format, stochastic rounding, a transform), and if
// no layer is quantised.
absl::StatusOr<std::vector<OperandFormat>> Nvfp4Layers(const ResolvedRecipe& recipe,
                                                       const Outline& outline);

class Nvfp4Weights {
 public:
  // `threads`: 0 means every processor.
  static absl::StatusOr<std::unique_ptr<Nvfp4Weights>> Create(WeightSource& source, int threads);

  // Quantises `param`, the weight of a linear, unless it is already the current one.
  // FailedPrecondition with the number of non-finite values, if any.
  absl::Status Quantise(int64_t param, const OperandSpec& spec);

  // Results for the current parameter, [out, in].
  float amax() const { return amax_; }
  // S_enc, the factor contained in block scales: a weight is code · scale / S_enc.
  float global_scale() const;
  // [rows, in/2] codes, two to a byte, even element low.
  absl::Span<const std::byte> Codes(int64_t first_row, int64_t rows) const;
  // One row's [in/16] scales in E4M3. Rows of one 16×16 block share them.
  absl::Span<const std::byte> Scales(int64_t row) const;

 private:
  Nvfp4Weights(WeightSource& source, std::unique_ptr<Backend> backend)
      : source_(source), backend_(std::move(backend)) {}

  WeightSource& source_;
  std::unique_ptr<Backend> backend_;
  int64_t param_ = -1;
  QuantizedTensor tensor_;
  float amax_ = 0;
};

struct PlannedTensor {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  SafetensorsWriter::Producer producer;
  // For weight_global_scale: the exact amax it was computed from.
  std::optional<float> amax;

  int64_t bytes() const;
};

struct TensorPlan {
  std::vector<PlannedTensor> tensors;  // in the layout's order
  std::vector<int64_t> shard;          // of each, from 0
  int64_t shards = 0;
  int64_t bytes = 0;
  std::vector<std::string>
      kept_modules;  // linears that stay in high precision, if others are quantised
};

struct TensorPlanOptions {
  FileDType dtype = FileDType::kBF16;
  int64_t max_shard_bytes = 0;
  // One per linear of the outline, of Nvfp4Layers(); empty: nothing is quantised.
  std::vector<OperandFormat> quantised;
  int threads = 0;
};

// `source` and `layout` outlive the plan. With `quantised`, reads the weights once for their amax.
absl::StatusOr<TensorPlan> PlanTensors(WeightSource& source, const HfModelLayout& layout,
                                       const TensorPlanOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_TENSOR_PLAN_H_

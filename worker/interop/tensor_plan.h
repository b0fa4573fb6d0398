// What an export writes: every tensor of the files with its bytes' source, and which file it is in.
//
// Ownership: producers borrow the source and share one cache of the parameter that was read last.
// Thread-safety: none; producers run one at a time.
#ifndef NIBBLE_WORKER_INTEROP_TENSOR_PLAN_H_
#define NIBBLE_WORKER_INTEROP_TENSOR_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/safetensors/dtype.h"
#include "common/safetensors/writer.h"
#include "recipe/recipe.h"
#include "worker/interop/hf_layout.h"
#include "worker/weights/weight_source.h"

namespace nibble {

struct PlannedTensor {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  SafetensorsWriter::Producer producer;
  // Of weight_global_scale: the exact amax it was made from.
  std::optional<float> amax;

  int64_t bytes() const;
};

struct TensorPlan {
  std::vector<PlannedTensor> tensors;  // in the layout's order
  std::vector<int64_t> shard;          // of each, from 0
  int64_t shards = 0;
  int64_t bytes = 0;
  std::vector<std::string> kept_modules;  // linears that stay in high precision, when some do not
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

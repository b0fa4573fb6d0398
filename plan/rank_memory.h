// The memory that one rank takes of its card in training, by purpose, for each level of sharding.
//
// Not counted: the CUDA context, the libraries' workspaces, the batch's tokens.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_PLAN_RANK_MEMORY_H_
#define NIBBLE_PLAN_RANK_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/outline.h"
#include "plan/sharding.h"
#include "recipe/gemm_path.h"
#include "recipe/recipe.h"

namespace nibble {

struct BatchShape {
  int64_t sequences = 1;
  int64_t length = 0;      // tokens of a sequence
  bool recompute = false;  // blocks run forward again just before their backward pass
  int64_t tokens() const { return sequences * length; }
};

// InvalidArgument naming the field, its value and the bound for sequences, length or tokens outside
// [1, 2^24].
absl::Status CheckBatch(const BatchShape& batch);

// What the model allocates beside its parameters, with BF16 activations. The same numbers as
// Model::Measure (worker/trainer/model), which lays its tensors out; rank_memory_test.cc there
// compares.
struct ModelMemory {
  int64_t working_weights = 0;
  int64_t activations = 0;  // from the forward to the backward pass, or from block to block
  int64_t scratch = 0;      // of one operation or block at a time
};
// `chunk_bytes`: of the head's logits and their gradient, see Backend::chunk_bytes().
// InvalidArgument as CheckBatch(), or for a recipe that was resolved against another model.
absl::StatusOr<ModelMemory> LayOutModel(const Outline& outline, const ResolvedRecipe& recipe,
                                        const GemmHardware& hardware, const BatchShape& batch,
                                        int64_t chunk_bytes);

// P is the number of parameters, R the number of ranks. One rank alone shards and exchanges
// nothing.
struct RankMemory {
  int64_t master = 0;   // FP32 weights: 4 · ⌈P / R⌉
  int64_t moments = 0;  // Adam's two, FP32: 8 · ⌈P / R⌉
  // FP32. Level optimizer: all of them, and the sums of this rank's part: 4 · (P + ⌈P / R⌉).
  // Above: the sums, and two adjacent units, one complete and one in the backward pass.
  int64_t gradients = 0;
  // All weights, as the products read them; level weights: this rank's part as it is gathered.
  int64_t working_weights = 0;
  // Level weights: two adjacent units, one in use and the next one, as the products read them.
  int64_t gathered = 0;
  int64_t activations = 0;  // as ModelMemory
  int64_t scratch = 0;
  // What arrives from other ranks: packed weights of two adjacent units before they are unpacked,
  // and the gradients of one unit before they are added in rank order, also those between nodes.
  int64_t exchange = 0;

  int64_t total() const {
    return master + moments + gradients + working_weights + gathered + activations + scratch +
           exchange;
  }
};

struct MemoryRequest {
  Sharding sharding = Sharding::kOptimizer;
  int64_t nodes = 1;
  int64_t cards_per_node = 1;
  BatchShape batch;
  GemmHardware hardware;
  int64_t ranks() const { return nodes * cards_per_node; }
};
// InvalidArgument naming the field, its value and the bound: as LayOutModel, and for ranks outside
// [1, 2^20].
absl::StatusOr<RankMemory> PlanRankMemory(const Outline& outline, const ResolvedRecipe& recipe,
                                          const MemoryRequest& request);

// The most sequences of a micro-batch with which the plan takes at most `device_bytes`; 0 if one
// does not fit. Errors as above.
absl::StatusOr<int64_t> LargestBatch(const Outline& outline, const ResolvedRecipe& recipe,
                                     MemoryRequest request, int64_t device_bytes);
// The fewest nodes, of powers of two up to 1024, whose cards hold the plan; 0 if none does.
absl::StatusOr<int64_t> FewestNodes(const Outline& outline, const ResolvedRecipe& recipe,
                                    MemoryRequest request, int64_t device_bytes);

}  // namespace nibble

#endif  // NIBBLE_PLAN_RANK_MEMORY_H_

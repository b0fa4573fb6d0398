// AdamW with its state sharded over the ranks: each has the moments and the sums of the gradients
// of its part of each bucket. A step reduce-scatters the gradients, bucket by bucket during the
// backward pass, updates each part on its rank according to the step's decision (step_decision.h),
// and gathers the weights. Everything is enqueued; the host waits for nothing.
//
//   ZeRO-1  every rank has all weights and gradients; these are reduced in the last micro-batch of
//           a step
//   ZeRO-2  the gradients of Parameters take turns: they are reduced in each micro-batch, and the
//           sums of the micro-batches are added on the rank that owns the part
//   ZeRO-3  the weights take turns, too: the masters are updated, and passes gather them
//           (weight_gathers.h)
//
// Sums over ranks are in rank order (see Collective): results are reproducible for a given number
// of ranks. With one micro-batch in a step all levels add the same numbers in the same order.
//
// Ownership: borrows device, parameters and collective; owns moments and the summed part.
// Thread-safety: none; every rank makes the same calls in the same order.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/step_ops.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/optim/collective_turn.h"

namespace nibble {

class ShardedAdamW {
 public:
  struct Options {
    float beta1 = 0.9f;
    float beta2 = 0.95f;
    float epsilon = 1e-8f;
    float weight_decay = 0.1f;
  };
  // InvalidArgument if a bucket is not divisible by the world (see Parameters::Create()).
  static absl::StatusOr<std::unique_ptr<ShardedAdamW>> Create(const Device& device,
                                                              Parameters& parameters,
                                                              Collective& collective,
                                                              const Options& options);

  // If gradients take turns: before the part `part` of a backward pass (see PassHooks, the head
  // included): gradients that begin with it may be written once their slot's previous bucket has
  // been reduced.
  absl::Status BeginGradients(int64_t part);
  // In the last micro-batch of a step, or in each one if gradients take turns, after the backward
  // pass of block `block`, of the head (spec.blocks()) or of everything (-1): begins to sum the
  // buckets over ranks that are complete. `first`: the first reduction of this bucket in the step;
  // later ones are added to it.
  absl::Status BeginReduce(int64_t block, bool first);
  // After the backward pass: computation enqueued afterwards has the sums. Adds the squares of this
  // rank's parts to numbers->squares: NaN or infinite if a gradient is.
  absl::Status FinishReduce(StepNumbers* numbers);
  // After FinishReduce(): makes update number `update`, from 1, unless the outcome has none, and
  // gathers the weights on all ranks, unless they take turns. `outcome`: on the device.
  absl::Status Update(const StepOutcome* outcome, int64_t update, double lr);

  // This rank's part of a bucket.
  struct Part {
    int64_t first = 0;  // of the flat vectors
    int64_t elements = 0;
    int64_t state = 0;  // where its moments begin
  };
  const std::vector<Part>& parts() const { return parts_; }  // by bucket
  // The weights of a part: [elements].
  float* weights(int64_t bucket) const;
  int64_t elements() const { return elements_; }             // of all parts
  size_t sum_bytes() const { return summed_.bytes(); }       // of their gradients
  float* first_moment() const { return m_.data<float>(); }   // [elements()]
  float* second_moment() const { return v_.data<float>(); }  // [elements()]

 private:
  struct Run {                // adjacent elements of a part with the same decay
    float* weights;           // [elements]
    int64_t state, elements;  // as in Part
    bool decay;
  };

  ShardedAdamW(const Device& device, Parameters& parameters, Collective& collective,
               const Options& options)
      : device_(device), parameters_(parameters), collective_(collective), options_(options) {}

  // A bucket in a slot whose reduction has begun.
  struct Sent {
    int64_t bucket = -1;  // none
    bool adds = false;    // the result is in the slot, in place, and is to be added to the sums
  };

  void PlanRuns();
  // Computation enqueued from now on may overwrite the slot: its bucket has been reduced and added.
  absl::Status Settle(Sent& sent);
  // [elements()]: the sums of this rank's parts.
  const float* gradients() const;

  Device device_;
  Parameters& parameters_;
  Collective& collective_;
  Options options_;
  int64_t elements_ = 0;
  std::vector<Part> parts_;
  std::vector<Run> runs_;
  Buffer m_, v_;
  Buffer summed_;  // [elements], if there is more than one rank
  std::vector<std::unique_ptr<Event>> complete_, reduced_;  // by bucket
  std::array<Sent, Parameters::kSlots> sent_;               // by slot, if gradients take turns
  std::optional<CollectiveTurn> turn_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

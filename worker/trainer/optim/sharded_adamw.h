// AdamW with its state sharded over the ranks: each has the moments and the sums of the gradients
// of its part of each bucket. A step reduce-scatters the gradients, bucket by bucket during the
// backward pass, and updates each part on its rank according to the step's decision
// (step_decision.h). Everything is enqueued; the host waits for nothing.
//
// With several ranks the update is that of the masters, of which each rank has its part at every
// level of sharding; passes gather them (weight_gathers.h). Gradients are reduced in each
// micro-batch, and the sums of the micro-batches are added on the rank that owns the part: with
// ZeRO-1 each bucket has memory of its own, from ZeRO-2 on buckets take turns.
//
// Sums over ranks are in rank order (see Collective): results are reproducible for a given number
// of ranks. All levels add the same numbers in the same order.
//
// Ownership: borrows device, parameters and collective; owns moments and the summed part.
// Thread-safety: none; every rank makes the same calls in the same order.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/optimizer_ops.h"
#include "kernels/ops/step_ops.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"

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

  // Before the part `part` of a backward pass (see PassHooks, the head included): gradients that
  // begin with it may be written once what was in their memory has been reduced.
  absl::Status BeginGradients(int64_t part);
  // In each micro-batch, after the backward pass of block `block`, of the head (spec.blocks()) or
  // of everything (-1): begins to sum the buckets over ranks that are complete. `first`: of the
  // step's micro-batches; the sums of later ones are added to its own. `last`: nothing is computed
  // beside the bucket that the pass completes last.
  absl::Status BeginReduce(int64_t block, bool first, bool last);
  // After the backward pass: computation enqueued afterwards has the sums. Adds the squares of this
  // rank's parts to numbers->squares: NaN or infinite if a gradient is. Those of all buckets but
  // the first, while that is still being summed.
  absl::Status FinishReduce(StepNumbers* numbers);
  // What updates also write, by parameter; of no other than one rank. Empty: nothing. The memory
  // stays until the next call.
  void SetCopies(std::vector<WorkingCopy> copies);
  // After FinishReduce(): makes update number `update`, from 1, unless the outcome has none.
  // `outcome`: on the device. With several ranks the first bucket is updated before the others, and
  // `first_updated` is called in between.
  absl::Status Update(const StepOutcome* outcome, int64_t update, double lr,
                      absl::FunctionRef<absl::Status()> first_updated);

  // This rank's part of a bucket.
  struct Part {
    int64_t first = 0;  // of the flat vectors
    int64_t elements = 0;
    int64_t state = 0;  // where its moments begin
  };
  const std::vector<Part>& parts() const { return parts_; }  // by bucket
  // The weights of a part: [elements].
  float* weights(int64_t bucket) const { return parameters_.masters() + parts_[bucket].state; }
  int64_t elements() const { return elements_; }             // of all parts
  size_t sum_bytes() const { return summed_.bytes(); }       // of their gradients
  float* first_moment() const { return m_.data<float>(); }   // [elements()]
  float* second_moment() const { return v_.data<float>(); }  // [elements()]

 private:
  ShardedAdamW(const Device& device, Parameters& parameters, Collective& collective,
               const Options& options)
      : device_(device), parameters_(parameters), collective_(collective), options_(options) {}

  // A bucket whose reduction has begun.
  struct Sent {
    int64_t bucket = -1;  // none
    bool adds = false;    // the result is in place, and is to be added to the sums
  };

  // Adjacent elements of a part are one run if they have the same decay and no copies; with several
  // ranks none is of the first bucket and of another one.
  void PlanRuns();
  // Computation enqueued from now on may overwrite the gradients: they have been reduced and added.
  absl::Status Settle(Sent& sent);
  // Of the memory of a bucket's gradients.
  Sent& SentOf(int64_t bucket) {
    const bool slot = parameters_.gradients_take_turns();
    return sent_[slot ? parameters_.buckets()[bucket].gradient_slot : bucket];
  }
  // [elements()]: the sums of this rank's parts.
  const float* gradients() const;

  Device device_;
  Parameters& parameters_;
  Collective& collective_;
  Options options_;
  int64_t elements_ = 0;
  std::vector<Part> parts_;
  std::vector<WorkingCopy> copies_;  // by parameter, or empty
  std::vector<AdamWRun> runs_;
  Buffer m_, v_;
  Buffer summed_;  // [elements], if there is more than one rank
  std::vector<std::unique_ptr<Event>> complete_, reduced_;  // by bucket
  std::vector<Sent> sent_;                                  // by slot or bucket: see SentOf()
  size_t first_runs_ = 0;  // of the first bucket, with several ranks
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

// AdamW with its state sharded over the ranks (ZeRO-1): every rank has all weights and gradients,
// and the moments of one contiguous part of the flat parameter vector. A step reduce-scatters the
// gradients, updates each part on its rank as the step's decision says (step_decision.h), and
// gathers the weights. Everything is enqueued; the host waits for nothing.
//
// Sums over ranks are in rank order (see Collective): results are reproducible for a given number
// of ranks.
//
// Ownership: borrows device, parameters and collective; owns moments and the summed part.
// Thread-safety: none; every rank makes the same calls in the same order.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

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
  // InvalidArgument if the flat vector is not divisible by the world (see Parameters::Create()).
  static absl::StatusOr<std::unique_ptr<ShardedAdamW>> Create(const Device& device,
                                                              Parameters& parameters,
                                                              Collective& collective,
                                                              const Options& options);

  // Sums the gradients over ranks, and adds the squares of this rank's part of the sum to
  // numbers->squares: NaN or infinite if a gradient is.
  absl::Status ReduceGradients(StepNumbers* numbers);
  // After ReduceGradients(): makes update number `update`, from 1, unless the outcome has none, and
  // gathers the weights on all ranks. `outcome`: on the device.
  absl::Status Update(const StepOutcome* outcome, int64_t update, double lr);

  // This rank's part of the flat vector, and its state there. [elements()]
  int64_t first_element() const { return first_; }
  int64_t elements() const { return elements_; }
  float* first_moment() const { return m_.data<float>(); }
  float* second_moment() const { return v_.data<float>(); }

 private:
  struct Run {                // adjacent elements of this part with the same decay
    int64_t first, elements;  // relative to the part
    bool decay;
  };

  ShardedAdamW(const Device& device, Parameters& parameters, Collective& collective,
               const Options& options)
      : device_(device), parameters_(parameters), collective_(collective), options_(options) {}

  const float* gradients() const;

  Device device_;
  Parameters& parameters_;
  Collective& collective_;
  Options options_;
  int64_t first_ = 0;
  int64_t elements_ = 0;
  std::vector<Run> runs_;
  Buffer m_, v_;
  Buffer summed_;  // [elements], if there is more than one rank
  std::optional<CollectiveTurn> turn_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

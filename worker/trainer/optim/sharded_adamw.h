// AdamW with its state sharded over the ranks (ZeRO-1): every rank has all weights and gradients,
// and the moments of one contiguous part of the flat parameter vector. A step reduce-scatters the
// gradients, clips by the global norm, updates each part on its rank, and gathers the weights.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
    float clip_norm = 1.0f;  // 0: no clipping
  };
  // InvalidArgument if the flat vector is not divisible by the world (see Parameters::Create()).
  static absl::StatusOr<std::unique_ptr<ShardedAdamW>> Create(const Device& device,
                                                              Parameters& parameters,
                                                              Collective& collective,
                                                              const Options& options);

  // Sums the gradients over ranks and returns the norm of the sum, before clipping: NaN or infinite
  // if a gradient is. Waits for the queue.
  absl::StatusOr<float> ReduceGradients();
  // After ReduceGradients(): makes update number `update`, from 1, and gathers the new weights on
  // all ranks.
  absl::Status Update(int64_t update, double lr);

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
  Buffer norm_sum_, norm_, scale_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

// AdamW with its state divided over the ranks (ZeRO-1): every rank holds all weights and gradients,
// and the moments of one contiguous part of the flat parameter vector. A step sums the gradients
// into the parts, clips by the norm of the whole, updates each part where its moments are, and
// gathers the weights.
//
// The sum over ranks is taken in rank order (see Collective), so every rank count gives its own
// bits, the same every time.
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
  // InvalidArgument where the flat vector does not divide by the world (see Parameters::Create).
  static absl::StatusOr<std::unique_ptr<ShardedAdamW>> Create(const Device& device,
                                                              Parameters& parameters,
                                                              Collective& collective,
                                                              const Options& options);

  // Sums the gradients over ranks and gives the norm of the sum, before clipping: NaN or infinite
  // where a gradient is. Waits for the queue.
  absl::StatusOr<float> ReduceGradients();
  // After ReduceGradients: the update number `update`, counted from 1, and the new weights on all
  // ranks.
  absl::Status Update(int64_t update, double lr);

  // This rank's part of the flat vector, and its state there. [elements()]
  int64_t first_element() const { return first_; }
  int64_t elements() const { return elements_; }
  float* first_moment() const { return m_.data<float>(); }
  float* second_moment() const { return v_.data<float>(); }

 private:
  struct Run {                // neighbours in this part with the same decay
    int64_t first, elements;  // from the part's beginning
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
  Buffer summed_;  // [elements], where there is more than one rank
  Buffer norm_sum_, norm_, scale_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_SHARDED_ADAMW_H_

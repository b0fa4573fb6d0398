// The output head and its loss, in chunks of rows: the full logits never exist. Training computes
// loss and gradient in one pass over each chunk.
//
// Ownership: borrows device and parameters. Thread-safety: none; one queue.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_HEAD_H_
#define NIBBLE_WORKER_TRAINER_MODEL_HEAD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/region.h"
#include "worker/trainer/model/step_context.h"
#include "worker/trainer/model/tensors.h"

namespace nibble {

class Head {
 public:
  static absl::StatusOr<Head> Create(const Device& device, const Parameters& parameters,
                                     DType dtype);

  // `step` holds the working copy of the weight, `scratch` the chunk.
  absl::Status Allocate(int64_t tokens, Region& step, Region& scratch);
  absl::Status PrepareWeights();

  // loss: [tokens] of x against targets, FP32. x: [tokens, d_model] after the final norm.
  absl::Status Loss(const ConstMatrix& x, const int32_t* targets, float* loss);
  // Also dx = scale · ∂(Σ loss)/∂x, and the same added to the weight's gradient.
  absl::Status LossAndGradient(const StepContext& context, const ConstMatrix& x,
                               const int32_t* targets, float scale, float* loss,
                               const MutableMatrix& dx);
  // logits: [rows of x, vocab] FP32.
  absl::Status Logits(const ConstMatrix& x, const MutableMatrix& logits);

  int64_t param() const { return param_; }
  bool tied() const { return tied_; }
  int64_t chunk_rows() const { return chunk_rows_; }

 private:
  Head(const Device& device, DType dtype) : device_(device), dtype_(dtype) {}
  ConstMatrix weight() const;

  Device device_;
  DType dtype_;
  int64_t param_ = 0;
  bool tied_ = false;
  int64_t vocab_ = 0, d_model_ = 0;
  float* weight_ = nullptr;   // [vocab, d_model]
  float* dweight_ = nullptr;  // [vocab, d_model]
  int64_t chunk_rows_ = 0;
  ActivationBuffer bf16_weight_;  // [vocab, d_model], where activations are BF16
  ActivationBuffer logits_;       // [chunk_rows, vocab] FP32
  ActivationBuffer dlogits_;      // [chunk_rows, vocab], in place where activations are FP32
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_HEAD_H_

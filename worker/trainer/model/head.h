// The output head of the model and its loss, in chunks of rows: the full logits are never
// materialised. Training computes loss and gradient in one pass over each chunk.
//
// Ownership: borrows the device and, of the parameters, the weight and its gradient; its buffers
// are in the regions that Allocate() is given. Thread-safety: none; everything enqueues on the
// device's queue and returns.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_HEAD_H_
#define NIBBLE_WORKER_TRAINER_MODEL_HEAD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/linear.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/model/region.h"

namespace nibble {

class Head {
 public:
  static absl::StatusOr<Head> Create(const Device& device, const Parameters& parameters,
                                     DType dtype);

  // Puts the working copy of the weight into `step`, and a chunk's logits into `scratch`.
  absl::Status Allocate(int64_t tokens, Region& step, Region& scratch);
  // Makes the working copy of the weight, unless others do (set_bf16_arrives).
  absl::Status PrepareWeights();

  // loss: [tokens] of x against targets, FP32. x: [tokens, d_model] after the final norm.
  absl::Status Loss(const ConstMatrix& x, const int32_t* targets, float* loss);
  // Also writes dx = scale · ∂(Σ loss)/∂x, and adds scale · ∂(Σ loss)/∂W to the weight's gradient.
  absl::Status LossAndGradient(const StepContext& context, const ConstMatrix& x,
                               const int32_t* targets, float scale, float* loss,
                               const MutableMatrix& dx);
  // logits: [rows of x, vocab] FP32.
  absl::Status Logits(const ConstMatrix& x, const MutableMatrix& logits);

  int64_t param() const { return param_; }
  bool tied() const { return tied_; }
  // The working copy of the weight: [vocab, d_model]; null if activations are FP32.
  uint16_t* working_copy() const;
  // The same; null also if the head's weight is the embedding's.
  uint16_t* bf16_weight() const;
  // Whether the update or the exchange between ranks writes the working copy.
  void set_bf16_arrives(bool arrives) { bf16_arrives_ = arrives; }

 private:
  Head(const Device& device, DType dtype) : device_(device), dtype_(dtype) {}
  ConstMatrix weight() const;

  Device device_;
  DType dtype_;
  int64_t param_ = 0;
  bool tied_ = false, bf16_arrives_ = false;
  int64_t vocab_ = 0, d_model_ = 0;
  float* weight_ = nullptr;   // [vocab, d_model]
  float* dweight_ = nullptr;  // [vocab, d_model]
  int64_t chunk_rows_ = 0;
  ActivationBuffer bf16_weight_;  // [vocab, d_model], if activations are BF16
  ActivationBuffer logits_;       // [chunk_rows, vocab] FP32
  ActivationBuffer dlogits_;      // [chunk_rows, vocab], in place if activations are FP32
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_HEAD_H_

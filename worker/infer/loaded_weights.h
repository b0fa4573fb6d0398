// A trained model's parameters, loaded for decoding: matrices (linears, embedding, positions, head)
// in one type, rounded once if that is BF16; everything else FP32. No gradients.
//
// Ownership: owns its numbers, in memory that outlives it. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_
#define NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"
#include "model/outline.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/parameters.h"
#include "worker/weights/weight_source.h"

namespace nibble {

class LoadedWeights : public ParameterView {
 public:
  // Reads every parameter of the source's outline, in order, one at a time. Errors of the source,
  // and of the memory with the parameter's name.
  static absl::StatusOr<LoadedWeights> Load(WeightSource& source, DType precision,
                                            const Device& device);

  const Outline& outline() const override { return outline_; }
  float* weight(int64_t param) const override { return buffers_[param].data<float>(); }
  float* gradient(int64_t) const override { return nullptr; }
  ConstMatrix matrix(int64_t param) const override;

  int64_t bytes() const { return bytes_; }

 private:
  Outline outline_;
  DType precision_ = DType::kF32;
  int64_t bytes_ = 0;
  std::vector<Buffer> buffers_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_

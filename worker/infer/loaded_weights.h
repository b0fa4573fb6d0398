// A model's parameters in the form that decoding reads: matrices (linears, embedding, positions,
// head) in one type, rounded once where that is BF16; everything else FP32.
//
// Ownership: owns the numbers, in the memory given, which outlives it. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_
#define NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"
#include "model/outline.h"
#include "worker/infer/decode_device.h"
#include "worker/weights/weight_source.h"

namespace nibble {

class LoadedWeights {
 public:
  // Reads every parameter of the source's outline, in its order, one at a time. Errors are the
  // source's and, with the parameter's name, the memory's.
  static absl::StatusOr<LoadedWeights> Load(WeightSource& source, DType precision,
                                            DecodeDevice& device);

  const Outline& outline() const { return outline_; }
  DType precision() const { return precision_; }
  int64_t bytes() const { return bytes_; }

  // A matrix parameter, by index in the outline.
  ConstMatrix matrix(int64_t param) const;
  // Any other parameter.
  const float* vector(int64_t param) const;
  // By name. Internal where the outline lacks it.
  absl::StatusOr<const float*> FindVector(std::string_view name) const;
  absl::StatusOr<ConstMatrix> FindMatrix(std::string_view name) const;

 private:
  Outline outline_;
  DType precision_ = DType::kF32;
  int64_t bytes_ = 0;
  std::vector<Buffer> buffers_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_LOADED_WEIGHTS_H_

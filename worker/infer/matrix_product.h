// y = x·Wᵀ for any number of rows: few rows go through kernels that read W once at the speed of
// memory, many through the matrix units.
//
// Ownership: borrows. Thread-safety: as DecodeDevice. Results do not depend on the number of
// threads.
#ifndef NIBBLE_WORKER_INFER_MATRIX_PRODUCT_H_
#define NIBBLE_WORKER_INFER_MATRIX_PRODUCT_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/matrix.h"
#include "worker/infer/decode_device.h"
#include "worker/infer/loaded_weights.h"

namespace nibble {

// x: [rows, in], w: [out, in] contiguous and of x's type, y: [rows, out] of x's type or FP32.
absl::Status Multiply(DecodeDevice& device, const ConstMatrix& x, const ConstMatrix& w,
                      const MutableMatrix& y);

// A linear layer's weights.
class DecodeLinear {
 public:
  // The layer "blocks.<block>.<kind>". Internal where the outline lacks it.
  static absl::StatusOr<DecodeLinear> Find(DecodeDevice& device, const LoadedWeights& weights,
                                           int64_t block, std::string_view kind);

  int64_t in() const { return weight_.cols; }
  int64_t out() const { return weight_.rows; }
  const float* bias() const { return bias_; }  // null: none

  absl::Status Forward(const ConstMatrix& x, const MutableMatrix& y) const;
  absl::Status ForwardWithoutBias(const ConstMatrix& x, const MutableMatrix& y) const;

 private:
  DecodeLinear(DecodeDevice& device, const ConstMatrix& weight, const float* bias)
      : device_(&device), weight_(weight), bias_(bias) {}

  DecodeDevice* device_;
  ConstMatrix weight_;
  const float* bias_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_MATRIX_PRODUCT_H_

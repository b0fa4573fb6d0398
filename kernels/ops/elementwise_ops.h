// MLP non-linearities, biases, casts, sums: operations that read each element once.
//
// All matrices of one request have one type, FP32 or BF16, unless stated otherwise; arithmetic is
// FP32, results are rounded once.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_ELEMENTWISE_OPS_H_
#define NIBBLE_KERNELS_OPS_ELEMENTWISE_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/formats/philox.h"
#include "kernels/tensor/matrix.h"
#include "model/model_spec.h"
#include "model/outline.h"

namespace nibble {

// in: [tokens, d_ff]; for SwiGLU [tokens, 2·d_ff], gate | up, and out = SiLU(gate) · up.
struct ActivationForward {
  Activation kind = Activation::kSquaredRelu;
  const float* bias = nullptr;  // [columns of in], added to `in` first; null: none
  ConstMatrix in;
  MutableMatrix out;      // [tokens, d_ff]
  float* amax = nullptr;  // [1] the largest |out| as rounded, NaN left out; null: not wanted
};
struct ActivationBackward {
  Activation kind = Activation::kSquaredRelu;
  const float* bias = nullptr;
  ConstMatrix in;
  ConstMatrix dout;       // [tokens, d_ff]
  MutableMatrix din;      // as in; may be in
  float* amax = nullptr;  // of din
};

// y += bias, by row.
struct BiasForward {
  MutableMatrix y;              // [tokens, n]
  const float* bias = nullptr;  // [n]
};
struct BiasBackward {
  ConstMatrix dy;          // [tokens, n]
  float* dbias = nullptr;  // [n], += sums of the columns
};

// Rounds to nearest even, or widens.
struct Cast {
  ConstMatrix from;
  MutableMatrix to;
};

// to += from, any types; rounded once.
struct Accumulate {
  ConstMatrix from;
  MutableMatrix to;
};

// The initial values of a parameter's first n elements, with the same bits on every backend
// (kernels/formats/initial_values.h).
struct FillInitial {
  Init init = Init::kZeros;
  double scale = 0;
  RandomStream random;
  int64_t n = 0;
  float* out = nullptr;  // [n]
};

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const ActivationForward& request);
absl::Status Validate(const ActivationBackward& request);
absl::Status Validate(const BiasForward& request);
absl::Status Validate(const BiasBackward& request);
absl::Status Validate(const Cast& request);
absl::Status Validate(const Accumulate& request);
absl::Status Validate(const FillInitial& request);
absl::Status ValidateZero(const void* data, int64_t bytes);

class ElementwiseOps {
 public:
  virtual ~ElementwiseOps() = default;
  virtual absl::Status Forward(const ActivationForward& request) = 0;
  virtual absl::Status Backward(const ActivationBackward& request) = 0;
  virtual absl::Status Forward(const BiasForward& request) = 0;
  virtual absl::Status Backward(const BiasBackward& request) = 0;
  virtual absl::Status Run(const Cast& request) = 0;
  virtual absl::Status Run(const Accumulate& request) = 0;
  virtual absl::Status Run(const FillInitial& request) = 0;
  // As in layer_ops.h.
  virtual size_t ScratchBytes(const BiasBackward&) const { return 0; }
  // Zeros `bytes` bytes of the backend's memory.
  virtual absl::Status Zero(void* data, int64_t bytes) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_ELEMENTWISE_OPS_H_

// Normalisation, and the residual addition in front of it.
//
// All matrices of one request have one type, FP32 or BF16; arithmetic is FP32, results are rounded
// once. Parameters and their gradients are FP32.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_NORM_OPS_H_
#define NIBBLE_KERNELS_OPS_NORM_OPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

struct NormParams {
  bool centered = false;  // LayerNorm: subtracts the mean, has a bias
  float eps = 1e-5f;
  const float* weight = nullptr;  // [d]
  const float* bias = nullptr;    // [d], if centered
};

// sum = x + y; out = norm(sum). Without y (data null), out = norm(x) and sum is not written.
struct AddNormForward {
  NormParams norm;
  ConstMatrix x;          // [tokens, d]
  ConstMatrix y;          // [tokens, d] or null
  MutableMatrix sum;      // [tokens, d], rounded before it is normalised; may be x
  MutableMatrix out;      // [tokens, d]; null: addition only
  float* mean = nullptr;  // [tokens] out, if centered
  float* rstd = nullptr;  // [tokens] out; mean and rstd are needed with `out`
  // If not null: the largest |out| as rounded, NaN left out (see CopyRequest::amax). [1]
  float* amax = nullptr;
};

struct NormBackward {
  NormParams norm;
  ConstMatrix x;         // [tokens, d] the norm's input: AddNormForward's sum, or its x
  ConstMatrix dout;      // [tokens, d]
  ConstMatrix residual;  // [tokens, d] gradient of x that bypasses the norm; null: none
  const float* mean = nullptr;
  const float* rstd = nullptr;
  MutableMatrix dx;          // [tokens, d] residual + d norm; may be residual
  float* dweight = nullptr;  // [d] added to
  float* dbias = nullptr;    // [d] added to, if centered
};

// RMSNorm per group of y ⊙ SiLU(z), weight after: the output norm of a Mamba-2 mixer.
struct GatedNormForward {
  int groups = 1;  // of equal width, along the columns
  float eps = 1e-5f;
  const float* weight = nullptr;  // [d]
  ConstMatrix y;                  // [tokens, d]
  ConstMatrix z;                  // [tokens, d]
  MutableMatrix out;              // [tokens, d]
  float* rstd = nullptr;          // [tokens, groups] out
  float* amax = nullptr;          // as above
};

struct GatedNormBackward {
  int groups = 1;
  const float* weight = nullptr;
  ConstMatrix y;
  ConstMatrix z;
  ConstMatrix dout;
  const float* rstd = nullptr;
  MutableMatrix dy;          // [tokens, d]
  MutableMatrix dz;          // [tokens, d]
  float* dweight = nullptr;  // [d] added to
};

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const AddNormForward& request);
absl::Status Validate(const NormBackward& request);
absl::Status Validate(const GatedNormForward& request);
absl::Status Validate(const GatedNormBackward& request);

class NormOps {
 public:
  virtual ~NormOps() = default;
  virtual absl::Status Forward(const AddNormForward& request) = 0;
  virtual absl::Status Backward(const NormBackward& request) = 0;
  virtual absl::Status Forward(const GatedNormForward& request) = 0;
  virtual absl::Status Backward(const GatedNormBackward& request) = 0;
  // As in layer_ops.h.
  virtual size_t ScratchBytes(const NormBackward&) const { return 0; }
  virtual size_t ScratchBytes(const GatedNormBackward&) const { return 0; }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_NORM_OPS_H_

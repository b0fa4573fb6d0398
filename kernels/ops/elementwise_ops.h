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

// A number of copies within the device in one operation: a message into the tensors that it
// carries, or the reverse. No destination overlaps another one or a source.
struct CopyParts {
  enum class As : uint8_t {
    kBytes,
    kWidened,  // BF16 to FP32
    kRounded,  // FP32 to BF16, to nearest even
  };
  // Lines of equal length, at equal distances.
  struct Part {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t elements = 0;  // of a line: bytes, unless they change
    int64_t lines = 1;
    int64_t to_pitch = 0;  // bytes from line to line; ignored for a single line
    int64_t from_pitch = 0;
    As as = As::kBytes;

    // Bytes of an element.
    int64_t to_size() const { return as == As::kWidened ? 4 : as == As::kRounded ? 2 : 1; }
    int64_t from_size() const { return as == As::kWidened ? 2 : as == As::kRounded ? 4 : 1; }
    int64_t bytes() const { return lines * elements * (to_size() + from_size()); }
  };
  std::span<const Part> parts;
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
absl::Status Validate(const CopyParts& request);
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
  virtual absl::Status Run(const CopyParts& request) = 0;
  virtual absl::Status Run(const FillInitial& request) = 0;
  // As in layer_ops.h.
  virtual size_t ScratchBytes(const BiasBackward&) const { return 0; }
  // Zeros `bytes` bytes of the backend's memory.
  virtual absl::Status Zero(void* data, int64_t bytes) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_ELEMENTWISE_OPS_H_

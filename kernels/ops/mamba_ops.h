// Mamba-2: the depthwise causal convolution and the state-space scan, over whole sequences (in
// chunks) or, in decoding, from the states of the sequences that a request continues (token by
// token, so that the result of a token does not depend on how the tokens are divided into
// requests).
//
// All matrices of one request have one type. BF16: matmuls inside chunks take BF16 inputs and
// accumulate FP32; Δ, exponents, states and their recurrence, and the sums of dA, dΔ are FP32.
// FP32: everything FP32, the oracle.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_MAMBA_OPS_H_
#define NIBBLE_KERNELS_OPS_MAMBA_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops/sequence.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

// out = SiLU(conv(in) + bias), each channel alone, over the last `width` tokens of its document:
// conv(in)[t] = Σ_w weight[w] · in[t − (width − 1) + w].
struct ConvForward {
  SequenceLayout layout;
  int width = 4;
  const float* weight = nullptr;  // [channels, width]
  const float* bias = nullptr;    // [channels]
  ConstMatrix in;                 // [tokens, channels]
  MutableMatrix out;              // [tokens, channels]
  // [layout.continued.size()], each [width − 1, channels] in, out: the last inputs of the sequence,
  // oldest first; zeros at its beginning.
  std::span<float* const> windows;
};
struct ConvBackward {
  SequenceLayout layout;
  int width = 4;
  const float* weight = nullptr;
  const float* bias = nullptr;
  ConstMatrix in;
  ConstMatrix dout;
  MutableMatrix din;         // [tokens, channels]
  float* dweight = nullptr;  // [channels, width] added to
  float* dbias = nullptr;    // [channels] added to
};

// xbc: [tokens, heads·head_dim + 2·groups·state]: x by head | B by group | C by group. Head h reads
// group h / (heads / groups).
struct ScanShape {
  int heads = 0;
  int head_dim = 0;
  int groups = 0;
  int state = 0;
  int chunk = 128;

  int64_t d_inner() const { return int64_t{heads} * head_dim; }
  int64_t xbc_cols() const { return d_inner() + int64_t{2} * groups * state; }
};
struct ScanParams {
  const float* dt_bias = nullptr;  // [heads]
  const float* a_log = nullptr;    // [heads], A = −exp(a_log)
  const float* d = nullptr;        // [heads]
};

// Δ = softplus(dt + dt_bias); S_t = exp(Δ_t A) S_{t−1} + Δ_t x_t B_tᵀ, S = 0 before a document's
// first token; y_t = S_t C_t + D x_t.
struct ScanForward {
  ScanShape shape;
  ScanParams params;
  SequenceLayout layout;
  ConstMatrix xbc;
  ConstMatrix dt;   // [tokens, heads] raw
  MutableMatrix y;  // [tokens, heads·head_dim]
  // [layout.continued.size()], each [heads, state, head_dim] in, out: S of the sequence; zeros at
  // its beginning.
  std::span<float* const> states;
};
// Recomputes the states it needs.
struct ScanBackward {
  ScanShape shape;
  ScanParams params;
  SequenceLayout layout;
  ConstMatrix xbc;
  ConstMatrix dt;
  ConstMatrix dy;             // [tokens, heads·head_dim]
  MutableMatrix dxbc;         // overwritten
  MutableMatrix ddt;          // [tokens, heads] overwritten
  float* ddt_bias = nullptr;  // [heads] added to
  float* da_log = nullptr;    // [heads] added to
  float* dd = nullptr;        // [heads] added to
};

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const ConvForward& request);
absl::Status Validate(const ConvBackward& request);
absl::Status Validate(const ScanForward& request);
absl::Status Validate(const ScanBackward& request);

class MambaOps {
 public:
  virtual ~MambaOps() = default;
  virtual absl::Status Forward(const ConvForward& request) = 0;
  virtual absl::Status Backward(const ConvBackward& request) = 0;
  virtual absl::Status Forward(const ScanForward& request) = 0;
  virtual absl::Status Backward(const ScanBackward& request) = 0;
  // As in layer_ops.h.
  virtual size_t ScratchBytes(const ConvBackward&) const { return 0; }
  virtual size_t ScratchBytes(const ScanBackward&) const { return 0; }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_MAMBA_OPS_H_

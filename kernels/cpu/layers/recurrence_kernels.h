// Mamba-2 token by token, from states that the caller keeps: the convolution over the last tokens,
// and the recurrence of the state. Results and states do not depend on the division of the tokens
// into calls, to the bit. Compiled once per instruction set (isa.bzl). All arithmetic is FP32;
// matrices are float or uint16_t (BF16).
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_RECURRENCE_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_RECURRENCE_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

// out[t] = SiLU(bias + Σ_w taps[w] · in[t − (width − 1) + w]) for each channel. `window` provides
// the rows before in[0], oldest first, and receives the last width − 1 rows of the sequence.
template <class T>
struct ConvTokens {
  int64_t tokens;
  int64_t channels;
  int width;
  const float* taps;  // [width, channels], rows param_stride apart
  const float* bias;  // [channels]
  float* window;      // [width − 1, channels], rows param_stride apart
  int64_t param_stride;
  const T* in;  // [tokens, channels]
  int64_t in_stride;
  T* out;  // [tokens, channels]
  int64_t out_stride;
};

// One head: S ← decay_t S + (delta_t x_t) B_tᵀ, y_t = S C_t + d x_t.
template <class T>
struct ScanTokens {
  int64_t tokens;
  int head_dim;
  int state;
  const float* delta;  // [tokens] Δ
  const float* decay;  // [tokens] exp(Δ A)
  float d;
  const T* x;      // [tokens, head_dim]
  const T* b;      // [tokens, state]
  const T* c;      // [tokens, state]
  int64_t stride;  // elements from a row of x, b or c to the next
  T* y;            // [tokens, head_dim]
  int64_t y_stride;
  float* s;     // [state, head_dim] in, out
  float* room;  // [2 · state], the thread's own
};

template <class T>
struct RecurrenceKernels {
  void (*conv)(const ConvTokens<T>& conv);
  void (*scan)(const ScanTokens<T>& scan);

  static const RecurrenceKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_RECURRENCE_KERNELS_H_

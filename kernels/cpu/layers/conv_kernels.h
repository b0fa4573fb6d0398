// The depthwise causal convolution with SiLU, over a range of rows and channels.
//
// Rows are tokens of any sequences, one after the other. reach[r]: how many of the `width` − 1 rows
// before r belong to r's document; the output depends on no earlier ones.
//
// Compiled once per instruction set (isa.bzl), and for BF16 once more with AVX512-BF16.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CONV_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CONV_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"

namespace nibble::cpu {

struct ConvShape {
  int64_t rows;      // of the whole matrices; a call processes [row_begin, row_end)
  int64_t channels;  // of the call, from the pointers on
  int width;
  int64_t in_stride, out_stride, dout_stride, din_stride;  // elements
  int64_t param_stride;  // elements from one tap's weights, or one row of sums, to the next
};

// Pointers to row 0 and the first channel of the call.
struct ConvParams {
  const float* taps;  // [width, channels]: a tap's weights side by side
  const float* bias;  // [channels]
  const uint8_t* reach;
};

template <class T>
struct ConvKernels {
  void (*forward)(const ConvShape& shape, const ConvParams& params, int64_t row_begin,
                  int64_t row_end, const T* in, T* out);
  // sums: [width + 1, channels], written: the terms of the gradients of the taps and, last, of the
  // bias, summed over the call's rows. carry: [width − 1, channels] of scratch, packed.
  void (*backward)(const ConvShape& shape, const ConvParams& params, int64_t row_begin,
                   int64_t row_end, const T* in, const T* dout, T* din, float* sums, float* carry);

  static const ConvKernels baseline, avx2, avx512, avx512bf16;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CONV_KERNELS_H_

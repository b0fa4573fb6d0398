// The vector parts of attention: the operations on a strip of query rows between two matmuls.
// Compiled once per instruction set (isa.bzl), and for BF16 once more with AVX512-BF16.
//
// A strip is up to kStrip query rows of one head against one block of kKeyBlock keys; [from, to)
// are the columns of the block that the strip attends to, both multiples of kPanelDepth.
// Probabilities and score gradients are written as packed operands of the matmuls that follow
// (panel_layout.h). Scratch buffers have room for whole strips and blocks and are 64-byte aligned.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"

namespace nibble::cpu {

inline constexpr int kStrip = 32;
inline constexpr int kKeyBlock = 128;
// Probabilities below 2^−64 of a row's largest become zero: at FP32's precision nothing is lost,
// and no intermediate result is subnormal, which would be a hundred times slower.
inline constexpr float kSmallestLog2 = -64.0f;

// The keys that a strip's rows attend to: row r is token first_query + r of its sequence and
// attends to the keys from doc_begin[r] to itself.
struct StripMask {
  const int32_t* doc_begin;  // [rows]; null: zeros
  int64_t first_query;
  int64_t first_key;  // of the block
  int rows;
  int from, to;
};

// One step of the online softmax.
template <class T>
struct SoftmaxStep {
  StripMask mask;
  float factor;      // scale · log2 e
  float* s;          // [kStrip, kKeyBlock] q·k in; FP32: probabilities out
  T* p;              // BF16: probabilities out, packed a of depth kKeyBlock
  float* top;        // [kStrip] in, out: the largest factor · q·k so far
  float* sum;        // [kStrip] in, out: Σ 2^(factor · q·k − top)
  float* o;          // [kStrip, o_stride] scaled down where top grew; null: nothing there yet
  int64_t o_stride;  // a multiple of 16
};
// Initial value of `top`; finite, so that rows without visible keys stay free of NaN.
inline constexpr float kEmptyTop = -3.0e38f;

template <class T>
struct SoftmaxFinish {
  int rows;
  int cols;  // head_dim
  const float* o;
  int64_t o_stride;
  const float* top;
  const float* sum;
  T* out;
  int64_t out_stride;
  float* lse;   // [rows]
  float* amax;  // in, out: the largest |out|, NaN left out
};

// p = 2^(factor · s − lse2), ds = p · (dp − dot).
template <class T>
struct BackwardStep {
  StripMask mask;
  float factor;
  const float* s;     // [kStrip, kKeyBlock]
  const float* dp;    // [kStrip, kKeyBlock]
  const float* lse2;  // [kStrip] in units of log2
  const float* dot;   // [kStrip]
  // Packed b: a line per key of the block; depth kQueryBlock, kStrip of them in the strip.
  T* p_b;
  T* ds_b;
  // BF16: packed a of depth kKeyBlock. FP32: [kStrip, kKeyBlock].
  T* ds_a;
};
inline constexpr int kQueryBlock = 128;

// dot = Σ_c out · dout for each row, and lse in units of log2.
template <class T>
struct RowDots {
  int rows;
  int cols;
  const T* out;
  int64_t out_stride;
  const T* dout;
  int64_t dout_stride;
  const float* lse;
  float* dot;
  float* lse2;
};

// to[rows, cols] = factor · from, rounded; `transposed`: from is [cols, rows].
template <class T>
struct GradientStore {
  int64_t rows, cols;
  const float* from;  // has whole groups of sixteen rows and columns
  int64_t from_stride;
  bool transposed;
  float factor;
  T* to;
  int64_t to_stride;
};

template <class T>
struct AttentionKernels {
  void (*softmax)(const SoftmaxStep<T>& step);
  void (*finish)(const SoftmaxFinish<T>& rows);
  void (*backward)(const BackwardStep<T>& step);
  void (*dots)(const RowDots<T>& rows);
  void (*store)(const GradientStore<T>& gradient);

  static const AttentionKernels baseline, avx2, avx512, avx512bf16;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_KERNELS_H_

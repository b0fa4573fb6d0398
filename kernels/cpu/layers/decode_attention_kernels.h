// Attention of one token over a cache of keys and values, by blocks of keys: blocks are
// independent, so that a long cache occupies many threads, and are combined in order. Compiled once
// per instruction set (isa.bzl). All arithmetic is FP32.
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_DECODE_ATTENTION_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_DECODE_ATTENTION_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

inline constexpr int64_t kDecodeKeys = 256;

// The query heads of one key head against one block of its keys. With s_j = scale · q·k_j:
// top = max_j s_j, sum = Σ_j exp(s_j − top), out = Σ_j exp(s_j − top) v_j.
template <class T>
struct DecodeBlock {
  int heads;
  int head_dim;
  int64_t keys;  // 1 … kDecodeKeys
  float scale;
  const T* q;   // [heads, head_dim]
  const T* k;   // [keys, head_dim]
  const T* v;   // [keys, head_dim]
  float* room;  // [DecodeRoom(heads, head_dim)], the thread's own
  float* top;   // [heads]
  float* sum;   // [heads]
  float* out;   // [heads, head_dim]
};
constexpr int64_t DecodeRoom(int64_t heads, int64_t head_dim) {
  return heads * (head_dim + kDecodeKeys);
}

// Combines the blocks of one query head: Σ exp(top_b − max top) out_b over Σ exp(top_b − max top)
// sum_b, rounded once.
template <class T>
struct DecodeFinish {
  int64_t blocks;
  int head_dim;
  const float* top;  // of block b at top[b · top_stride]
  const float* sum;
  int64_t top_stride;
  const float* out;  // [blocks, head_dim], out_stride apart
  int64_t out_stride;
  T* to;  // [head_dim]
};

template <class T>
struct DecodeAttentionKernels {
  void (*block)(const DecodeBlock<T>& block);
  void (*finish)(const DecodeFinish<T>& finish);

  static const DecodeAttentionKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_DECODE_ATTENTION_KERNELS_H_

// Rotary positions on rows of heads, compiled once per instruction set (isa.bzl).
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ROPE_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ROPE_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

// Rotates pairs (i, i + half) of every head of every row, in place, by the row's position: its
// index within the sequence less that of its document's first token.
template <class T>
struct RopeRows {
  T* x;  // [rows, heads · 2 half]
  int64_t stride;
  int64_t rows;
  int64_t first_row;         // index of row 0 within the sequence
  const int32_t* doc_begin;  // [rows]; null: zeros
  int heads;
  int half;
  const float* cosines;  // [positions, half]
  const float* sines;    // [positions, half]
  bool inverse;
};

struct RopeKernels {
  void (*fp32)(const RopeRows<float>& rows);
  void (*bf16)(const RopeRows<uint16_t>& rows);

  static const RopeKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ROPE_KERNELS_H_

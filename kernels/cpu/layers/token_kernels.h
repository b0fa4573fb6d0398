// Embedding and cross entropy (kernels/ops/token_ops.h) a row at a time, per instruction set.
//
// Ownership: borrows. Thread-safety: pure functions; rows that do not overlap may run concurrently.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_TOKEN_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_TOKEN_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/tensor/matrix.h"

namespace nibble::cpu {

// Arrays are indexed by DType.
struct TokenKernels {
  // out: [d] = entry: [d] (+ position: [d], if not null). [type of entry and position][of out]
  void (*embed[2][2])(const void* entry, const void* position, int64_t d, void* out);
  // to[j] += Σ_i from(rows[i], j) for j in [begin, end), summed in the order of `rows`: [count].
  void (*add_rows[2])(const ConstMatrix& from, const int32_t* rows, int64_t count, int64_t begin,
                      int64_t end, float* to);
  // The loss of logits: [vocab] against `target` in [0, vocab). dlogits: [vocab] = scale · (softmax
  // − one-hot), may be logits if the types are equal; null: not wanted. [type of logits][of
  // dlogits]
  float (*cross_entropy[2][2])(const void* logits, int64_t vocab, int32_t target, float scale,
                               void* dlogits);

  static const TokenKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_TOKEN_KERNELS_H_

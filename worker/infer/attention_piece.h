// Queries of one sequence against its cache, as the two ways of attending see them.
//
// Ownership: borrows. Thread-safety: values.
#ifndef NIBBLE_WORKER_INFER_ATTENTION_PIECE_H_
#define NIBBLE_WORKER_INFER_ATTENTION_PIECE_H_

#include <cstdint>

#include "kernels/ops/attention_ops.h"

namespace nibble {

// Query head h reads key head h / (heads / kv_heads). T is float or uint16_t (BF16).
template <class T>
struct AttentionPiece {
  int64_t rows;      // tokens that ask
  int64_t position;  // of the first; token r sees the keys of positions 0 … position + r
  const T* q;        // [rows, heads · head_dim]
  int64_t q_stride;
  const T* keys;        // [kv_heads, head_stride], of which [position + rows, head_dim] are there
  const T* values;      // likewise
  int64_t head_stride;  // elements
  T* out;               // [rows, heads · head_dim]
  int64_t out_stride;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_ATTENTION_PIECE_H_

// Causal grouped-query attention, over packed documents or over the key/value caches of sequences
// that a request continues, and rotary positions.
//
// All matrices of one request have one type. BF16: matmuls take BF16 and accumulate FP32, softmax
// is FP32, results are rounded once. FP32: everything FP32, the oracle.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_ATTENTION_OPS_H_
#define NIBBLE_KERNELS_OPS_ATTENTION_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops/sequence.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

// qkv: [tokens, (heads + 2·kv_heads)·head_dim], q | k | v, heads of head_dim each. Query head h
// reads key head h / (heads / kv_heads).
struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 1;  // of q·k

  int64_t qkv_cols() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
  int64_t out_cols() const { return int64_t{heads} * head_dim; }
};

// Rotates q and k in place by position within the document: pairs (i, i + head_dim/2), angle
// position · theta^(−2i/head_dim). `inverse` rotates back: the backward pass.
struct Rope {
  AttentionShape shape;
  SequenceLayout layout;
  MutableMatrix qkv;
  double theta = 10000.0;
  bool inverse = false;
};

// Keys and values of one sequence, of qkv's type, by key head, so that a head's keys are
// contiguous.
struct KvCache {
  void* keys = nullptr;    // [kv_heads, capacity, head_dim], rotated
  void* values = nullptr;  // [kv_heads, capacity, head_dim]
  int64_t capacity = 0;    // in tokens
};

struct AttentionForward {
  AttentionShape shape;
  SequenceLayout layout;
  ConstMatrix qkv;
  MutableMatrix out;  // [tokens, heads·head_dim]
  // With caches, lse and amax are not written.
  float* lse = nullptr;   // [heads, tokens] out: ln Σ exp(scale · q·k)
  float* amax = nullptr;  // [1] the largest |out| as rounded, NaN left out; null: not wanted
  // [layout.continued.size()] in, out: the keys and values of the tokens before a continuation;
  // those of its tokens are appended.
  std::span<const KvCache> caches;
};

struct AttentionBackward {
  AttentionShape shape;
  SequenceLayout layout;
  ConstMatrix qkv;
  ConstMatrix out;
  ConstMatrix dout;
  const float* lse = nullptr;
  MutableMatrix dqkv;  // overwritten
};

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const Rope& request);
absl::Status Validate(const AttentionForward& request);
absl::Status Validate(const AttentionBackward& request);

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;
  virtual absl::Status Run(const Rope& request) = 0;
  virtual absl::Status Forward(const AttentionForward& request) = 0;
  virtual absl::Status Backward(const AttentionBackward& request) = 0;
  // As in layer_ops.h.
  virtual size_t ScratchBytes(const AttentionBackward&) const { return 0; }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_ATTENTION_OPS_H_

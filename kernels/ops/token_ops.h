// Token embedding and cross-entropy loss.
//
// Ownership: requests borrow until the operation has run. Execution model, thread-safety: as
// Backend (kernels/ops/backend.h). Results do not depend on the number of threads.
#ifndef NIBBLE_KERNELS_OPS_TOKEN_OPS_H_
#define NIBBLE_KERNELS_OPS_TOKEN_OPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/ops/sequence.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

// out = table[token] (+ positions[position]), each rounded to out's type; the sum, in FP32, is
// rounded to it, too. So BF16 outputs need no more of the tables than their BF16 rounding, which is
// what ranks that share the weights send.
struct EmbeddingForward {
  SequenceLayout layout;
  const int32_t* tokens = nullptr;  // [tokens], in [0, vocab); checked
  ConstMatrix table;                // [vocab, d], FP32 or BF16
  // [max_positions, d], by index within the document, of table's type; null data: none.
  ConstMatrix positions;
  MutableMatrix out;  // [tokens, d]
};
// dtable[token] += dout and dpositions[position] += dout, in ascending order of tokens for each row
// of a table.
struct EmbeddingBackward {
  SequenceLayout layout;
  const int32_t* tokens = nullptr;
  int64_t vocab = 0;
  ConstMatrix dout;         // [tokens, d]
  float* dtable = nullptr;  // [vocab, d]
  int64_t max_positions = 0;
  float* dpositions = nullptr;  // [max_positions, d] or null
};

// Softmax cross entropy of rows of logits. A target of -1 is ignored: its loss and its gradient are
// 0.
struct CrossEntropy {
  ConstMatrix logits;                // [rows, vocab] FP32 or BF16
  const int32_t* targets = nullptr;  // [rows]
  float* loss = nullptr;             // [rows] out
  float scale = 1;                   // dlogits = scale · (softmax − one-hot)
  MutableMatrix dlogits;             // [rows, vocab] FP32 or BF16, may be logits; null: not wanted
};

// Every backend calls them first. InvalidArgument names the operation, the operand, its value and
// what it must be. They read nothing in the backend's memory.
absl::Status Validate(const EmbeddingForward& request);
absl::Status Validate(const EmbeddingBackward& request);
absl::Status Validate(const CrossEntropy& request);

class TokenOps {
 public:
  virtual ~TokenOps() = default;
  // InvalidArgument naming the row and the token for one outside the vocabulary, or a position
  // past max_positions. On an asynchronous backend Synchronize reports it.
  virtual absl::Status Forward(const EmbeddingForward& request) = 0;
  virtual absl::Status Backward(const EmbeddingBackward& request) = 0;
  virtual absl::Status Run(const CrossEntropy& request) = 0;
  // As in layer_ops.h.
  virtual size_t ScratchBytes(const EmbeddingBackward&) const { return 0; }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_TOKEN_OPS_H_

// How the rows of a token matrix form sequences and documents.
//
// Ownership: borrows. Thread-safety: values.
#ifndef NIBBLE_KERNELS_OPS_SEQUENCE_H_
#define NIBBLE_KERNELS_OPS_SEQUENCE_H_

#include <cstdint>
#include <span>

namespace nibble {

// Rows [row, row + rows) are consecutive tokens of one sequence, whose first `position` tokens were
// run by earlier requests.
struct Continuation {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t position = 0;
};

// Either whole sequences (training, evaluation): rows s·length … (s + 1)·length − 1 of every
// [tokens, …] matrix are sequence s. Or continuations (decoding): the next tokens of sequences,
// whose earlier tokens are represented by the caches and states that come with a request.
struct SequenceLayout {
  int64_t sequences = 0;
  int64_t length = 0;
  // [tokens]: the index within its sequence of the first token of this token's document; never
  // decreases along a sequence. Attention, convolution and state stop there, and positions count
  // from it. In the backend's memory. Null: zeros.
  const int32_t* doc_begin = nullptr;
  // If not empty, the fields above keep their defaults; the continuations cover all rows, in order,
  // and are of different sequences. Backward passes refuse it.
  std::span<const Continuation> continued;

  int64_t tokens() const {
    return continued.empty() ? sequences * length : continued.back().row + continued.back().rows;
  }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_SEQUENCE_H_

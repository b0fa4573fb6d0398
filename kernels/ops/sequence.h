// How the rows of a token matrix form sequences and documents.
//
// Ownership: borrows. Thread-safety: a value.
#ifndef NIBBLE_KERNELS_OPS_SEQUENCE_H_
#define NIBBLE_KERNELS_OPS_SEQUENCE_H_

#include <cstdint>

namespace nibble {

// Rows s·length … (s + 1)·length − 1 of every [tokens, …] matrix are sequence s.
struct SequenceLayout {
  int64_t sequences = 0;
  int64_t length = 0;
  // [tokens]: the index within its sequence of the first token of this token's document; never
  // decreases along a sequence. A token sees nothing before it: attention, convolution and state
  // stop there, and positions count from it. In the backend's memory. Null: zeros.
  const int32_t* doc_begin = nullptr;

  int64_t tokens() const { return sequences * length; }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_SEQUENCE_H_

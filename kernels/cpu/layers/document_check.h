// Checks of doc_begin, which the CPU backend can read in the call.
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_DOCUMENT_CHECK_H_
#define NIBBLE_KERNELS_CPU_LAYERS_DOCUMENT_CHECK_H_

#include <string_view>

#include "absl/status/status.h"
#include "kernels/ops/sequence.h"

namespace nibble::cpu {

// For operations that look back to a document's first token. InvalidArgument naming the operation,
// the token and its bounds if a document begins before its sequence, after its token or before the
// previous token's document. The layout is valid.
absl::Status CheckDocuments(std::string_view operation, const SequenceLayout& layout);
// For operations that stop at a document's first token: each document also begins at one of its
// own.
absl::Status CheckDocumentStarts(std::string_view operation, const SequenceLayout& layout);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_DOCUMENT_CHECK_H_

#include "kernels/cpu/layers/document_check.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/ops/operand_check.h"

namespace nibble::cpu {

absl::Status CheckDocuments(std::string_view operation, const SequenceLayout& layout) {
  OperandCheck check(operation);
  if (layout.doc_begin == nullptr) return check.status();
  for (int64_t s = 0; s < layout.sequences; ++s) {
    int32_t previous = 0;
    for (int64_t t = 0; t < layout.length; ++t) {
      const int32_t begin = layout.doc_begin[s * layout.length + t];
      if (begin >= previous && begin <= t) {
        previous = begin;
        continue;
      }
      return check
          .That(false, "doc_begin of token ", t, " of sequence ", s, " is ", begin,
                ", must be at least ", previous, " and at most ", t)
          .status();
    }
  }
  return check.status();
}

absl::Status CheckDocumentStarts(std::string_view operation, const SequenceLayout& layout) {
  OperandCheck check(operation);
  if (layout.doc_begin == nullptr) return check.status();
  for (int64_t s = 0; s < layout.sequences; ++s) {
    const int32_t* begin = layout.doc_begin + s * layout.length;
    for (int64_t t = 0; t < layout.length; ++t) {
      const int32_t running = t == 0 ? 0 : begin[t - 1];
      if (begin[t] == t || begin[t] == running) continue;
      return check
          .That(false, "doc_begin of token ", t, " of sequence ", s, " is ", begin[t], ", must be ",
                t, t == 0 ? "" : absl::StrCat(" or, as before it, ", running))
          .status();
    }
  }
  return check.status();
}

}  // namespace nibble::cpu

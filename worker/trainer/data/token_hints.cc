#include "worker/trainer/data/token_hints.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace nibble {

absl::Status Validate(const TokenHints& hints) {
  constexpr int64_t kMaxVocabulary = int64_t{1} << 31;  // tokens are handed out as int32
  const bool printable = std::all_of(hints.tokenizer.begin(), hints.tokenizer.end(),
                                     [](char c) { return c >= ' ' && c <= '~'; });
  if (hints.tokenizer.empty() || hints.tokenizer.size() > 32 || !printable) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokenizer: the file does not say which one made it, and what was given, \"%s\", is not 1 "
        "to 32 printable ASCII characters",
        absl::CHexEscape(hints.tokenizer)));
  }
  if (hints.vocabulary < 1 || hints.vocabulary > kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrFormat("vocabulary: the file does not say it, and what was given, %d, is not in "
                        "[1, %d]",
                        hints.vocabulary, kMaxVocabulary));
  }
  if (hints.token_width != 0 && hints.token_width != 2 && hints.token_width != 4) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token_width is %d, not 2 or 4", hints.token_width));
  }
  if (hints.document_mark.has_value() &&
      (hints.document_mark->token < 0 || hints.document_mark->token >= hints.vocabulary)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "document_mark is %d, not in [0, %d)", hints.document_mark->token, hints.vocabulary));
  }
  return absl::OkStatus();
}

}  // namespace nibble

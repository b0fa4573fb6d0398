// Tokens to text as they come, in whole UTF-8 characters: what is given out is never taken back and
// adds up to what the tokenizer makes of all tokens together. Bytes that are no UTF-8 come out as
// U+FFFD, one for each.
//
// Ownership: borrows the tokenizer. Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_INFER_TEXT_STREAM_H_
#define NIBBLE_WORKER_INFER_TEXT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

class TextStream {
 public:
  // The text goes on after `before`, which is not given out. Errors as Tokenizer::Decode.
  static absl::StatusOr<TextStream> Create(const Tokenizer& tokenizer,
                                           absl::Span<const int32_t> before);

  // What the token adds. A character that may still be missing bytes waits for the tokens to come.
  // Errors as Tokenizer::Decode.
  absl::StatusOr<std::string> Add(int32_t token);
  // What still waits.
  std::string Finish();

 private:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;  // a few that were given out, then those that were not
  size_t given_ = 0;             // bytes of their text that were
  std::string waiting_;
};

// The bytes at the end of `text` that a well-formed character may begin with: 0 to 3.
size_t UnfinishedUtf8(std::string_view text);
// With U+FFFD for each byte that belongs to no well-formed character.
std::string WellFormedUtf8(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_TEXT_STREAM_H_

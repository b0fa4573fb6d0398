// What the fuzz targets of token files check of every source that opens, and how they say what is
// broken.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_TESTS_FUZZ_FUZZ_CHECKS_H_
#define NIBBLE_TESTS_FUZZ_FUZZ_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

// Not assert(): that one vanishes in optimised builds.
inline void Check(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", claim);
  std::abort();
}

inline void CheckRefusal(const absl::Status& status) {
  Check(!status.message().empty(), "a refusal says why");
  Check(status.message().size() < 2000, "a refusal is short, whatever the input");
}

// Of a source whose file has `file_bytes` bytes. Reads lie in allocations of exactly their size, so
// that the address sanitizer sees a token too many.
inline void CheckSource(const TokenSource& source, uint64_t file_bytes) {
  const int64_t tokens = source.tokens(), documents = source.documents();
  Check(tokens >= 0 && static_cast<uint64_t>(tokens) <= file_bytes, "a token has a byte at least");
  Check(documents >= 0 && documents <= tokens, "a document has a token at least");
  Check((documents == 0) == (tokens == 0), "every token has a document");
  Check(source.vocabulary() >= 1 && source.vocabulary() <= int64_t{1} << 31,
        "a vocabulary is of int32 tokens");
  Check(source.DocumentBegin(0) == 0, "the first document begins at 0");
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t begin = source.DocumentBegin(d), end = source.DocumentBegin(d + 1);
    Check(begin < end && end <= tokens, "documents follow each other inside the tokens");
    Check(source.DocumentOf(begin) == d && source.DocumentOf(end - 1) == d,
          "a document holds its tokens");
  }
  Check(source.DocumentBegin(documents) == tokens, "the last document ends with the tokens");

  const absl::Status verified = source.Verify();
  if (!verified.ok()) CheckRefusal(verified);
  bool all_read = true;
  for (int64_t first = 0; first < tokens;) {
    const int64_t count = std::min<int64_t>(tokens - first, 1 + first % 97);
    const std::unique_ptr<int32_t[]> out(new int32_t[static_cast<size_t>(count)]);
    if (source.Read(first, count, out.get()).ok()) {
      for (int64_t i = 0; i < count; ++i) {
        Check(out[i] >= 0 && out[i] < source.vocabulary(), "a token read is in the vocabulary");
      }
    } else {
      all_read = false;
    }
    first += count;
  }
  Check(verified.ok() == all_read, "what is verified can be read, and nothing else");
  int32_t none = 0;
  Check(source.Read(tokens, 0, &none).ok(), "no token can be read from the end");
  Check(absl::IsOutOfRange(source.Read(tokens, 1, &none)), "no token lies behind the last");
}

}  // namespace nibble

#endif  // NIBBLE_TESTS_FUZZ_FUZZ_CHECKS_H_

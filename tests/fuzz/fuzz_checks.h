// The checks of the fuzz targets of token files for every source that opens, and how they report a
// failure.
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

// Not assert(): that one is absent from optimised builds.
inline void Check(bool ok, const char* claim) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n", claim);
  std::abort();
}

inline void CheckRefusal(const absl::Status& status) {
  Check(!status.message().empty(), "a refusal has a reason");
  Check(status.message().size() < 2000, "a refusal is short for any input");
}

// `file_bytes`: the size of the source's file. Reads use allocations of exactly their size, so that
// the address sanitizer detects a token too many.
inline void CheckSource(const TokenSource& source, uint64_t file_bytes) {
  const int64_t tokens = source.tokens(), documents = source.documents();
  Check(tokens >= 0 && static_cast<uint64_t>(tokens) <= file_bytes, "a token has at least a byte");
  Check(documents >= 0 && documents <= tokens, "a document has at least a token");
  Check((documents == 0) == (tokens == 0), "every token has a document");
  Check(source.vocabulary() >= 1 && source.vocabulary() <= int64_t{1} << 31,
        "the tokens of a vocabulary fit int32");
  Check(source.DocumentBegin(0) == 0, "the first document begins at 0");
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t begin = source.DocumentBegin(d), end = source.DocumentBegin(d + 1);
    Check(begin < end && end <= tokens, "documents follow each other inside the tokens");
    Check(source.DocumentOf(begin) == d && source.DocumentOf(end - 1) == d,
          "a token is in its document");
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
  Check(verified.ok() == all_read, "Verify() succeeds exactly if every token can be read");
  int32_t none = 0;
  Check(source.Read(tokens, 0, &none).ok(), "zero tokens can be read at the end");
  Check(absl::IsOutOfRange(source.Read(tokens, 1, &none)), "no token can be read after the last");
}

}  // namespace nibble

#endif  // NIBBLE_TESTS_FUZZ_FUZZ_CHECKS_H_

// Feeds arbitrary bytes to RawTokens::Open, and checks the guarantees of a TokenSource for every
// file that opens, and the documents against a plain search for the document mark.
//
// The first four bytes of an input are the hints: flags (1: tokens of 2 bytes, 2: of 4, 4: there is
// a document mark, 8: it begins documents), the mark, and the vocabulary, little-endian. The rest
// is the file.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tests/fuzz/fuzz_checks.h"
#include "worker/trainer/data/foreign_tokens.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_source.h"

namespace {

constexpr size_t kHintBytes = 4;

nibble::TokenHints HintsOf(const uint8_t* data) {
  nibble::TokenHints hints{.tokenizer = "fuzz", .vocabulary = data[2] | data[3] << 8};
  hints.token_width = (data[0] & 3) == 3 ? 3 : 2 * (data[0] & 3);
  if ((data[0] & 4) != 0) {
    hints.document_mark =
        nibble::DocumentMark{.token = data[1],
                             .place = (data[0] & 8) != 0 ? nibble::DocumentMark::Place::kBegins
                                                         : nibble::DocumentMark::Place::kEnds};
  }
  return hints;
}

// Documents begin at the marks, and nowhere else.
void CheckDocuments(const nibble::RawTokens& source, const nibble::TokenHints& hints) {
  if (!hints.document_mark.has_value()) {
    nibble::Check(source.documents() <= 1, "without a mark there is one document");
    return;
  }
  std::vector<int32_t> tokens(static_cast<size_t>(source.tokens()));
  if (!source.Read(0, source.tokens(), tokens.data()).ok()) {
    nibble::Check(false, "with a mark Open() checks every token");
  }
  const bool begins = hints.document_mark->place == nibble::DocumentMark::Place::kBegins;
  int64_t document = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[begins ? i : i - 1] != hints.document_mark->token) continue;
    ++document;
    nibble::Check(
        document < source.documents() && source.DocumentBegin(document) == static_cast<int64_t>(i),
        "a document begins at every mark");
  }
  nibble::Check(tokens.empty() || document + 1 == source.documents(),
                "a document begins at marks only");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHintBytes) return 0;
  const nibble::TokenHints hints = HintsOf(data);
  const absl::Span<const std::byte> file(reinterpret_cast<const std::byte*>(data) + kHintBytes,
                                         size - kHintBytes);
  const auto source = nibble::RawTokens::Open("input", nibble::MappedFile::Borrow(file), hints);
  if (!source.ok()) {
    nibble::CheckRefusal(source.status());
    return 0;
  }
  nibble::CheckSource(**source, file.size());
  CheckDocuments(**source, hints);
  return 0;
}

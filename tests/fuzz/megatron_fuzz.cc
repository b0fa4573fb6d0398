// Feeds arbitrary bytes as an index and its tokens to MegatronTokens::Open, and checks the
// guarantees of a TokenSource for every pair that opens, and its documents against sums of lengths.
//
// The first two bytes of an input are the index's size, little-endian; the index and the tokens
// follow. An input is tried twice: unchanged, and with the size and the sequence pointers corrected
// from the index's counts, since few mutations keep them correct and reach the later checks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "absl/types/span.h"
#include "tests/fuzz/fuzz_checks.h"
#include "worker/trainer/data/foreign_tokens.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_source.h"

namespace {

// From docs/formats/token-files.md, not from the code under test.
constexpr size_t kType = 17, kSequences = 18, kDocuments = 26, kHeaderBytes = 34;

template <class T>
T Get(absl::Span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

void CheckPair(absl::Span<const std::byte> index, absl::Span<const std::byte> tokens) {
  const nibble::TokenHints hints{.tokenizer = "fuzz", .vocabulary = 300};
  const auto source = nibble::MegatronTokens::Open("input", nibble::MappedFile::Borrow(index),
                                                   nibble::MappedFile::Borrow(tokens), hints);
  if (!source.ok()) {
    nibble::CheckRefusal(source.status());
    return;
  }
  nibble::CheckSource(**source, tokens.size());
  const auto sequences = Get<uint64_t>(index, kSequences);
  const size_t boundaries = kHeaderBytes + 12 * static_cast<size_t>(sequences);
  int64_t sum = 0;
  uint64_t sequence = 0;
  for (int64_t d = 0; d <= (*source)->documents(); ++d) {
    const auto first = Get<int64_t>(index, boundaries + 8 * static_cast<size_t>(d));
    for (; sequence < static_cast<uint64_t>(first); ++sequence) {
      sum += Get<int32_t>(index, kHeaderBytes + 4 * static_cast<size_t>(sequence));
    }
    nibble::Check((*source)->DocumentBegin(d) == sum,
                  "a document begins at the sum of the lengths of the sequences before it");
  }
}

// Checks a pair after correcting its pointers from its lengths.
void CheckCorrected(absl::Span<const std::byte> rest) {
  if (rest.size() < kHeaderBytes) return;
  const unsigned __int128 sequences = Get<uint64_t>(rest, kSequences);
  const unsigned __int128 documents = Get<uint64_t>(rest, kDocuments);
  const unsigned __int128 size = kHeaderBytes + 12 * sequences + 8 * documents;
  if (size > rest.size()) return;
  constexpr int64_t kWidths[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  const auto type = Get<uint8_t>(rest, kType);
  const int64_t width = type < std::size(kWidths) ? kWidths[type] : 0;
  std::vector<std::byte> index(rest.begin(), rest.begin() + static_cast<size_t>(size));
  std::byte* pointers = index.data() + kHeaderBytes + 4 * static_cast<size_t>(sequences);
  int64_t pointer = 0;
  for (size_t s = 0; s < static_cast<size_t>(sequences); ++s) {
    std::memcpy(pointers + 8 * s, &pointer, sizeof(pointer));
    pointer += width * Get<int32_t>(index, kHeaderBytes + 4 * s);
  }
  CheckPair(index, rest.subspan(static_cast<size_t>(size)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const absl::Span<const std::byte> rest(reinterpret_cast<const std::byte*>(data) + 2, size - 2);
  const size_t index = std::min<size_t>(rest.size(), data[0] | data[1] << 8);
  CheckPair(rest.subspan(0, index), rest.subspan(index));
  CheckCorrected(rest);
  return 0;
}

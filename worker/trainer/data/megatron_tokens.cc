#include "worker/trainer/data/megatron_tokens.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_array.h"
#include "worker/trainer/data/token_hints.h"

namespace nibble {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr size_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26;
constexpr size_t kHeaderBytes = 34;
// Keeps sums of sizes far from overflow.
constexpr uint64_t kMaxCount = uint64_t{1} << 48;

template <class T>
T At(const std::byte* bytes, size_t index = 0) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

// By the format's codes, 1 to 8.
struct CodedType {
  const char* name;
  std::optional<TokenType> type;
};
constexpr CodedType kTypes[] = {
    {"uint8", TokenType::kUint8}, {"int8", TokenType::kInt8},     {"int16", TokenType::kInt16},
    {"int32", TokenType::kInt32}, {"int64", TokenType::kInt64},   {"float64", std::nullopt},
    {"float32", std::nullopt},    {"uint16", TokenType::kUint16},
};

absl::StatusOr<TokenType> TypeOf(uint8_t code) {
  if (code < 1 || code > std::size(kTypes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dtype code is %d, not in [1, %d]", code, std::size(kTypes)));
  }
  const CodedType& coded = kTypes[code - 1];
  if (!coded.type.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dtype code is %d, %s, which is no type of tokens", code, coded.name));
  }
  return *coded.type;
}

absl::Status CheckHints(const TokenHints& hints) {
  if (absl::Status status = Validate(hints); !status.ok()) return status;
  if (hints.token_width != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "token_width: %d was given for a file of nothing but tokens, but this is an index, which "
        "tells the width",
        hints.token_width));
  }
  if (hints.document_mark.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("document_mark: %d was given, but the index tells the documents",
                        hints.document_mark->token));
  }
  return absl::OkStatus();
}

}  // namespace

bool HasMegatronMagic(absl::Span<const std::byte> file) {
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

absl::StatusOr<std::unique_ptr<MegatronTokens>> MegatronTokens::Open(std::string path,
                                                                     MappedFile index,
                                                                     MappedFile tokens,
                                                                     const TokenHints& hints) {
  std::unique_ptr<MegatronTokens> opened(
      new MegatronTokens(std::move(path), std::move(index), std::move(tokens), hints));
  absl::Status status = CheckHints(hints);
  if (status.ok()) status = opened->Load();
  if (status.ok()) status = opened->CheckSequences();
  if (status.ok()) status = opened->CheckDocuments();
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(opened->path_, ": ", status.message()));
  }
  return opened;
}

absl::Status MegatronTokens::Load() {
  const absl::Span<const std::byte> index = index_.bytes();
  if (!HasMegatronMagic(index)) {
    return absl::InvalidArgumentError("begins with another magic than an index's, MMIDIDX");
  }
  if (index.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the index has %d bytes, fewer than the %d of its header", index.size(), kHeaderBytes));
  }
  if (const auto version = At<uint64_t>(index.data() + kVersionAt); version != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("version is %d, not 1, the one known here", version));
  }
  const absl::StatusOr<TokenType> type = TypeOf(At<uint8_t>(index.data() + kTypeAt));
  if (!type.ok()) return type.status();
  const auto sequences = At<uint64_t>(index.data() + kSequencesAt);
  const auto boundaries = At<uint64_t>(index.data() + kDocumentsAt);
  if (sequences > kMaxCount) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence count is %d, more than %d", sequences, kMaxCount));
  }
  if (boundaries < 1 || boundaries > sequences + 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "document count is %d, not in [1, sequence count + 1 = %d]", boundaries, sequences + 1));
  }
  const uint64_t expected =
      kHeaderBytes + sequences * (sizeof(int32_t) + sizeof(int64_t)) + boundaries * sizeof(int64_t);
  if (index.size() == expected + sequences && sequences > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the index has a mode for each of its %d sequences, as those of more than "
                        "text have",
                        sequences));
  }
  if (index.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the index has %d bytes, but sequence count %d and document count %d make "
                        "%d",
                        index.size(), sequences, boundaries, expected));
  }
  const absl::Span<const std::byte> data = tokens_.bytes();
  const auto width = static_cast<size_t>(TokenTypeBytes(*type));
  if (data.size() % width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its tokens' file has %d bytes, not a multiple of dtype %s", data.size(),
                        TokenTypeName(*type)));
  }
  array_ = {*type, data};
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;
  lengths_ = index.data() + kHeaderBytes;
  pointers_ = lengths_ + sequences * sizeof(int32_t);
  documents_at_ = pointers_ + sequences * sizeof(int64_t);
  return absl::OkStatus();
}

int64_t MegatronTokens::LengthOf(int64_t sequence) const {
  return At<int32_t>(lengths_, static_cast<size_t>(sequence));
}

int64_t MegatronTokens::PointerOf(int64_t sequence) const {
  return sequence == sequences_ ? static_cast<int64_t>(tokens_.bytes().size())
                                : At<int64_t>(pointers_, static_cast<size_t>(sequence));
}

int64_t MegatronTokens::FirstSequence(int64_t document) const {
  return At<int64_t>(documents_at_, static_cast<size_t>(document));
}

absl::Status MegatronTokens::CheckSequences() const {
  const auto bytes = static_cast<int64_t>(tokens_.bytes().size());
  const int64_t width = token_width();
  int64_t end = 0;  // in bytes, of the sequences so far; at most `bytes`
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t length = LengthOf(s);
    if (const int64_t pointer = PointerOf(s); pointer != end) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "sequence pointer %d is %d, not %d, where the sequence before ends", s, pointer, end));
    }
    if (length < 0 || length > (bytes - end) / width) {
      return absl::InvalidArgumentError(
          absl::StrFormat("sequence length %d is %d, not in [0, %d], the tokens that are left", s,
                          length, (bytes - end) / width));
    }
    end += length * width;
  }
  if (end != bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the sequences end at byte %d, but their tokens' file has %d bytes", end, bytes));
  }
  return absl::OkStatus();
}

absl::Status MegatronTokens::CheckDocuments() const {
  int64_t begin = FirstSequence(0);
  if (begin != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("document index 0 is %d, not 0", begin));
  }
  for (int64_t d = 1; d <= documents_; ++d) {
    const int64_t end = FirstSequence(d);
    if (end <= begin || end > sequences_) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "document index %d is %d, not in (%d, sequence count = %d]", d, end, begin, sequences_));
    }
    if (PointerOf(end) == PointerOf(begin)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "document %d, of sequences %d to %d, has no token", d - 1, begin, end - 1));
    }
    begin = end;
  }
  if (begin != sequences_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the document indices end at %d, not at sequence count %d", begin, sequences_));
  }
  return absl::OkStatus();
}

std::string MegatronTokens::format() const {
  return absl::StrFormat("Megatron index, version 1, %s, %d sequences",
                         TokenTypeName(array_.type()), sequences_);
}

int64_t MegatronTokens::DocumentBegin(int64_t document) const {
  return PointerOf(FirstSequence(document)) / token_width();
}

}  // namespace nibble

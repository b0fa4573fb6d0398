#include "worker/trainer/data/foreign_tokens.h"

#include <algorithm>
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

namespace {

// Integers are copied without byte swapping.
static_assert(std::endian::native == std::endian::little);

template <class T>
absl::Status Copy(const std::string& name, const std::byte* data, int64_t vocabulary, int64_t first,
                  int64_t count, int32_t* out) {
  const auto load = [&](int64_t i) {
    T token;
    std::memcpy(&token, data + (first + i) * sizeof(T), sizeof(T));
    return token;
  };
  const auto outside = [&](T token) {  // a negative token is a large unsigned one
    return static_cast<uint64_t>(static_cast<int64_t>(token)) >= static_cast<uint64_t>(vocabulary);
  };
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) {
    const T token = load(i);
    bad |= outside(token);
    out[i] = static_cast<int32_t>(token);
  }
  if (!bad) return absl::OkStatus();
  int64_t i = 0;
  while (!outside(load(i))) ++i;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: token %d at position %d is outside the vocabulary [0, %d)", name,
                      static_cast<int64_t>(load(i)), first + i, vocabulary));
}

// Types of elements by code: those of a Megatron index, and uint32.
struct ElementType {
  const char* name;
  int bytes;
  // Null for a type that is not an integer.
  absl::Status (*copy)(const std::string& name, const std::byte* data, int64_t vocabulary,
                       int64_t first, int64_t count, int32_t* out);
};
constexpr ElementType kTypes[] = {
    {"uint8", 1, Copy<uint8_t>}, {"int8", 1, Copy<int8_t>},     {"int16", 2, Copy<int16_t>},
    {"int32", 4, Copy<int32_t>}, {"int64", 8, Copy<int64_t>},   {"float64", 8, nullptr},
    {"float32", 4, nullptr},     {"uint16", 2, Copy<uint16_t>}, {"uint32", 4, Copy<uint32_t>},
};
constexpr auto kMaxIndexCode = static_cast<uint8_t>(TokenType::kUint16);

const ElementType& Info(TokenType type) { return kTypes[static_cast<size_t>(type) - 1]; }

}  // namespace

int TokenTypeBytes(TokenType type) { return Info(type).bytes; }

const char* TokenTypeName(TokenType type) { return Info(type).name; }

absl::Status TokenArray::Read(const std::string& name, int64_t vocabulary, int64_t first,
                              int64_t count, int32_t* out) const {
  if (first < 0 || count < 0 || first > size_ || count > size_ - first) {
    return absl::OutOfRangeError(absl::StrFormat("%s: %d tokens from %d on are not inside [0, %d)",
                                                 name, count, first, size_));
  }
  return Info(type_).copy(name, data_, vocabulary, first, count, out);
}

namespace {

// A header is 256 little-endian int32: magic, version, number of tokens, zeros.
constexpr size_t kRawHeaderInts = 256;
constexpr size_t kRawHeaderBytes = kRawHeaderInts * sizeof(int32_t);

struct RawVariant {
  int32_t magic;
  int32_t version;
  TokenType type;
};
constexpr RawVariant kRawVariants[] = {{20240520, 1, TokenType::kUint16},
                                       {20240801, 7, TokenType::kUint32}};

int32_t HeaderInt(absl::Span<const std::byte> file, size_t index) {
  int32_t value;
  std::memcpy(&value, file.data() + index * sizeof(value), sizeof(value));
  return value;
}

const RawVariant* FindVariant(absl::Span<const std::byte> file) {
  if (file.size() < sizeof(int32_t)) return nullptr;
  const int32_t magic = HeaderInt(file, 0);
  const auto* found = std::find_if(std::begin(kRawVariants), std::end(kRawVariants),
                                   [&](const RawVariant& v) { return v.magic == magic; });
  return found == std::end(kRawVariants) ? nullptr : found;
}

}  // namespace

bool HasRawHeader(absl::Span<const std::byte> file) { return FindVariant(file) != nullptr; }

absl::StatusOr<std::unique_ptr<RawTokens>> RawTokens::Open(std::string path, MappedFile file,
                                                           const TokenHints& hints) {
  std::unique_ptr<RawTokens> tokens(new RawTokens(std::move(path), std::move(file), hints));
  absl::Status status = Validate(hints);
  if (status.ok()) status = tokens->Load();
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(tokens->path_, ": ", status.message()));
  }
  // Its messages name the path.
  NIBBLE_RETURN_IF_ERROR(tokens->FindDocuments());
  return tokens;
}

absl::Status RawTokens::Load() {
  const absl::Span<const std::byte> bytes = file_.bytes();
  const RawVariant* variant = FindVariant(bytes);
  if (variant != nullptr) return LoadHeader();
  if (hints_.token_width == 0) {
    return absl::InvalidArgumentError(
        "does not begin with a known header; for tokens without a header, give token_width (2 or "
        "4)");
  }
  if (bytes.size() % hints_.token_width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the file has %d bytes, not a multiple of token_width %d", bytes.size(),
                        hints_.token_width));
  }
  array_ = {hints_.token_width == 2 ? TokenType::kUint16 : TokenType::kUint32, bytes};
  format_ = absl::StrCat("raw tokens, ", TokenTypeName(array_.type()));
  return absl::OkStatus();
}

absl::Status RawTokens::LoadHeader() {
  const absl::Span<const std::byte> bytes = file_.bytes();
  const RawVariant& variant = *FindVariant(bytes);
  if (hints_.token_width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token_width is %d, but the file has a header (magic %d), which records it",
                        hints_.token_width, variant.magic));
  }
  if (bytes.size() < kRawHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the file has %d bytes, fewer than the %d of its header", bytes.size(), kRawHeaderBytes));
  }
  if (const int32_t version = HeaderInt(bytes, 1); version != variant.version) {
    return absl::InvalidArgumentError(absl::StrFormat("version is %d, not %d as for magic %d",
                                                      version, variant.version, variant.magic));
  }
  const int64_t count = HeaderInt(bytes, 2);
  const int64_t expected =
      static_cast<int64_t>(kRawHeaderBytes) + count * TokenTypeBytes(variant.type);
  if (count < 0 || static_cast<int64_t>(bytes.size()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token count is %d, but the file has %d bytes, %d of them header", count,
                        bytes.size(), kRawHeaderBytes));
  }
  for (size_t i = 3; i < kRawHeaderInts; ++i) {
    if (const int32_t value = HeaderInt(bytes, i); value != 0) {
      return absl::InvalidArgumentError(absl::StrFormat("header[%d] is %d, not 0", i, value));
    }
  }
  array_ = {variant.type, bytes.subspan(kRawHeaderBytes)};
  format_ = absl::StrFormat("raw tokens, %s, header %d version %d", TokenTypeName(variant.type),
                            variant.magic, variant.version);
  return absl::OkStatus();
}

absl::Status RawTokens::FindDocuments() {
  if (tokens() == 0) return absl::OkStatus();
  if (hints_.document_mark.has_value()) {
    const DocumentMark mark = *hints_.document_mark;
    NIBBLE_RETURN_IF_ERROR(ReadBlocks([&](int64_t first, absl::Span<const int32_t> block) {
      for (size_t i = 0; i < block.size(); ++i) {
        if (block[i] != mark.token) continue;
        const int64_t at = first + static_cast<int64_t>(i);
        const int64_t end = at + (mark.place == DocumentMark::Place::kEnds ? 1 : 0);
        if (end > 0) document_end_.push_back(end);
      }
    }));
  }
  if (document_end_.empty() || document_end_.back() != tokens()) document_end_.push_back(tokens());
  return absl::OkStatus();
}

std::optional<int32_t> RawTokens::end_of_document() const {
  if (!hints_.document_mark.has_value() ||
      hints_.document_mark->place != DocumentMark::Place::kEnds) {
    return std::nullopt;
  }
  return hints_.document_mark->token;
}

namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr size_t kIndexVersionAt = 9, kIndexTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26;
constexpr size_t kIndexHeaderBytes = 34;
// Keeps sums of sizes far from overflow.
constexpr uint64_t kMaxCount = uint64_t{1} << 48;

template <class T>
T IndexEntry(const std::byte* bytes, size_t index = 0) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

absl::StatusOr<TokenType> TypeOfCode(uint8_t code) {
  if (code < 1 || code > kMaxIndexCode) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dtype code is %d, not in [1, %d]", code, kMaxIndexCode));
  }
  const auto type = static_cast<TokenType>(code);
  if (Info(type).copy == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dtype code is %d, %s, which is not an integer type", code, Info(type).name));
  }
  return type;
}

absl::Status CheckHints(const TokenHints& hints) {
  NIBBLE_RETURN_IF_ERROR(Validate(hints));
  if (hints.token_width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token_width is %d, but the index records the width", hints.token_width));
  }
  if (hints.document_mark.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "document_mark is %d, but the index records the documents", hints.document_mark->token));
  }
  return absl::OkStatus();
}

}  // namespace

bool HasMegatronMagic(absl::Span<const std::byte> file) {
  return file.size() >= kIndexMagic.size() &&
         std::memcmp(file.data(), kIndexMagic.data(), kIndexMagic.size()) == 0;
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
    return absl::InvalidArgumentError("does not begin with the magic of an index, MMIDIDX");
  }
  if (index.size() < kIndexHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the index has %d bytes, fewer than the %d of its header", index.size(),
                        kIndexHeaderBytes));
  }
  if (const auto version = IndexEntry<uint64_t>(index.data() + kIndexVersionAt); version != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("version is %d, not 1, the only supported version", version));
  }
  NIBBLE_ASSIGN_OR_RETURN(const TokenType type,
                          TypeOfCode(IndexEntry<uint8_t>(index.data() + kIndexTypeAt)));
  const auto sequences = IndexEntry<uint64_t>(index.data() + kSequencesAt);
  const auto boundaries = IndexEntry<uint64_t>(index.data() + kDocumentsAt);
  if (sequences > kMaxCount) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence count is %d, more than %d", sequences, kMaxCount));
  }
  if (boundaries < 1 || boundaries > sequences + 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "document count is %d, not in [1, sequence count + 1 = %d]", boundaries, sequences + 1));
  }
  const uint64_t expected = kIndexHeaderBytes + sequences * (sizeof(int32_t) + sizeof(int64_t)) +
                            boundaries * sizeof(int64_t);
  if (index.size() == expected + sequences && sequences > 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the index has a mode for each of its %d sequences: multimodal data sets are not "
        "supported",
        sequences));
  }
  if (index.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the index has %d bytes, but sequence count %d and document count %d make "
                        "%d",
                        index.size(), sequences, boundaries, expected));
  }
  const absl::Span<const std::byte> data = tokens_.bytes();
  const auto width = static_cast<size_t>(TokenTypeBytes(type));
  if (data.size() % width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its .bin file has %d bytes, not a multiple of dtype %s", data.size(),
                        TokenTypeName(type)));
  }
  array_ = {type, data};
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;
  lengths_ = index.data() + kIndexHeaderBytes;
  pointers_ = lengths_ + sequences * sizeof(int32_t);
  documents_at_ = pointers_ + sequences * sizeof(int64_t);
  return absl::OkStatus();
}

int64_t MegatronTokens::LengthOf(int64_t sequence) const {
  return IndexEntry<int32_t>(lengths_, static_cast<size_t>(sequence));
}

int64_t MegatronTokens::PointerOf(int64_t sequence) const {
  return sequence == sequences_ ? static_cast<int64_t>(tokens_.bytes().size())
                                : IndexEntry<int64_t>(pointers_, static_cast<size_t>(sequence));
}

int64_t MegatronTokens::FirstSequence(int64_t document) const {
  return IndexEntry<int64_t>(documents_at_, static_cast<size_t>(document));
}

absl::Status MegatronTokens::CheckSequences() const {
  const auto bytes = static_cast<int64_t>(tokens_.bytes().size());
  const int64_t width = token_width();
  int64_t end = 0;  // in bytes, of the sequences so far; at most `bytes`
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t length = LengthOf(s);
    if (const int64_t pointer = PointerOf(s); pointer != end) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "sequence pointer %d is %d, not %d, the end of the previous sequence", s, pointer, end));
    }
    if (length < 0 || length > (bytes - end) / width) {
      return absl::InvalidArgumentError(
          absl::StrFormat("sequence length %d is %d, not in [0, %d], the remaining tokens", s,
                          length, (bytes - end) / width));
    }
    end += length * width;
  }
  if (end != bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the sequences end at byte %d, but the .bin file has %d bytes", end, bytes));
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

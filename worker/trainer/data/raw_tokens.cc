#include "worker/trainer/data/raw_tokens.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// A header is 256 little-endian int32: magic, version, number of tokens, zeros.
constexpr size_t kHeaderInts = 256;
constexpr size_t kHeaderBytes = kHeaderInts * sizeof(int32_t);

struct Variant {
  int32_t magic;
  int32_t version;
  TokenType type;
};
constexpr Variant kVariants[] = {{20240520, 1, TokenType::kUint16},
                                 {20240801, 7, TokenType::kUint32}};

int32_t HeaderInt(absl::Span<const std::byte> file, size_t index) {
  int32_t value;
  std::memcpy(&value, file.data() + index * sizeof(value), sizeof(value));
  return value;
}

const Variant* FindVariant(absl::Span<const std::byte> file) {
  if (file.size() < sizeof(int32_t)) return nullptr;
  const int32_t magic = HeaderInt(file, 0);
  const auto* found = std::find_if(std::begin(kVariants), std::end(kVariants),
                                   [&](const Variant& v) { return v.magic == magic; });
  return found == std::end(kVariants) ? nullptr : found;
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
  // Says the path itself.
  if (absl::Status found = tokens->FindDocuments(); !found.ok()) return found;
  return tokens;
}

absl::Status RawTokens::Load() {
  const absl::Span<const std::byte> bytes = file_.bytes();
  const Variant* variant = FindVariant(bytes);
  if (variant != nullptr) return LoadHeader();
  if (hints_.token_width == 0) {
    return absl::InvalidArgumentError(
        "begins with no header known here; token_width (2 or 4) would say that it is nothing but "
        "tokens");
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
  const Variant& variant = *FindVariant(bytes);
  if (hints_.token_width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token_width: %d was given for a file of nothing but tokens, but this one "
                        "has a header, of magic %d",
                        hints_.token_width, variant.magic));
  }
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the file has %d bytes, fewer than the %d of its header", bytes.size(), kHeaderBytes));
  }
  if (const int32_t version = HeaderInt(bytes, 1); version != variant.version) {
    return absl::InvalidArgumentError(absl::StrFormat("version is %d, not %d, the one of magic %d",
                                                      version, variant.version, variant.magic));
  }
  const int64_t count = HeaderInt(bytes, 2);
  const int64_t expected =
      static_cast<int64_t>(kHeaderBytes) + count * TokenTypeBytes(variant.type);
  if (count < 0 || static_cast<int64_t>(bytes.size()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token count is %d, but the file has %d bytes, %d of them header", count,
                        bytes.size(), kHeaderBytes));
  }
  for (size_t i = 3; i < kHeaderInts; ++i) {
    if (const int32_t value = HeaderInt(bytes, i); value != 0) {
      return absl::InvalidArgumentError(absl::StrFormat("header[%d] is %d, not 0", i, value));
    }
  }
  array_ = {variant.type, bytes.subspan(kHeaderBytes)};
  format_ = absl::StrFormat("raw tokens, %s, header %d version %d", TokenTypeName(variant.type),
                            variant.magic, variant.version);
  return absl::OkStatus();
}

absl::Status RawTokens::FindDocuments() {
  if (tokens() == 0) return absl::OkStatus();
  if (hints_.document_mark.has_value()) {
    const DocumentMark mark = *hints_.document_mark;
    std::vector<int32_t> block(std::min<int64_t>(tokens(), int64_t{1} << 16));
    for (int64_t first = 0; first < tokens();) {
      const int64_t count = std::min<int64_t>(tokens() - first, static_cast<int64_t>(block.size()));
      if (absl::Status status = Read(first, count, block.data()); !status.ok()) return status;
      for (int64_t i = 0; i < count; ++i) {
        if (block[i] != mark.token) continue;
        const int64_t end = first + i + (mark.place == DocumentMark::Place::kEnds ? 1 : 0);
        if (end > 0) document_end_.push_back(end);
      }
      first += count;
    }
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

}  // namespace nibble

#include "worker/trainer/data/shard.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "common/status_macros.h"
#include "worker/trainer/data/mapped_file.h"

namespace nibble {

namespace shard_internal {
namespace {

// Integers are copied without byte swapping.
static_assert(std::endian::native == std::endian::little);

constexpr size_t kMagicAt = 0;
constexpr size_t kVersionAt = 8;
constexpr size_t kTokenWidthAt = 12;
constexpr size_t kTokenCountAt = 16;
constexpr size_t kDocumentCountAt = 24;
constexpr size_t kVocabularyAt = 32;
constexpr size_t kEndOfDocumentAt = 36;
constexpr size_t kChunkBytesAt = 40;
constexpr size_t kIndexCrcAt = 44;
constexpr size_t kChunkTableCrcAt = 48;
constexpr size_t kTokenizerAt = 52;
constexpr size_t kReservedAt = kTokenizerAt + kTokenizerBytes;
constexpr size_t kHeaderCrcAt = kHeaderBytes - sizeof(uint32_t);

template <class T>
T Load(absl::Span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <class T>
void Store(absl::Span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

absl::Status Refuse(std::string_view field, uint64_t value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrFormat("%s is %d, not %s", field, value, allowed));
}

bool Printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

absl::Status Check(const ShardHeader& header) {
  if (header.token_width != 2 && header.token_width != 4) {
    return Refuse("token_width", header.token_width, "2 or 4");
  }
  if (header.token_count > kMaxTokens) {
    return Refuse("token_count", header.token_count, absl::StrFormat("at most %d", kMaxTokens));
  }
  // Every document has a token and every token a document.
  if (header.document_count > header.token_count ||
      (header.document_count == 0) != (header.token_count == 0)) {
    return Refuse("document_count", header.document_count,
                  header.token_count == 0
                      ? "0, with token_count 0"
                      : absl::StrFormat("in [1, token_count = %d]", header.token_count));
  }
  // Readers return tokens as int32.
  const uint64_t largest = header.token_width == 2 ? uint64_t{1} << 16 : uint64_t{1} << 31;
  if (header.vocabulary == 0 || header.vocabulary > largest) {
    return Refuse(
        "vocabulary", header.vocabulary,
        absl::StrFormat("in [1, %d], the range of token_width %d", largest, header.token_width));
  }
  if (header.end_of_document != kNoEndOfDocument && header.end_of_document >= header.vocabulary) {
    return Refuse("end_of_document", header.end_of_document,
                  absl::StrFormat("below the vocabulary of %d", header.vocabulary));
  }
  if (!std::has_single_bit(header.chunk_bytes) || header.chunk_bytes < kMinChunkBytes ||
      header.chunk_bytes > kMaxChunkBytes) {
    return Refuse("chunk_bytes", header.chunk_bytes,
                  absl::StrFormat("a power of two in [%d, %d]", kMinChunkBytes, kMaxChunkBytes));
  }
  if (header.tokenizer.empty() || header.tokenizer.size() > kTokenizerBytes ||
      !Printable(header.tokenizer)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokenizer is \"%s\", not 1 to %d printable ASCII characters",
                        absl::CHexEscape(header.tokenizer), kTokenizerBytes));
  }
  return absl::OkStatus();
}

ShardLayout LayoutOf(const ShardHeader& header) {
  ShardLayout layout;
  layout.data_bytes = header.token_count * header.token_width;
  layout.index_begin = (layout.data_begin + layout.data_bytes + 7) / 8 * 8;
  layout.index_bytes = header.document_count * sizeof(uint64_t);
  layout.table_begin = layout.index_begin + layout.index_bytes;
  layout.chunks = (layout.data_bytes + header.chunk_bytes - 1) / header.chunk_bytes;
  layout.file_bytes = layout.table_begin + layout.chunks * sizeof(uint32_t);
  return layout;
}

std::array<std::byte, kHeaderBytes> EncodeHeader(const ShardHeader& header) {
  std::array<std::byte, kHeaderBytes> bytes = {};
  const absl::Span<std::byte> out(bytes);
  std::memcpy(out.data() + kMagicAt, kMagic.data(), kMagic.size());
  Store(out, kVersionAt, kVersion);
  Store(out, kTokenWidthAt, header.token_width);
  Store(out, kTokenCountAt, header.token_count);
  Store(out, kDocumentCountAt, header.document_count);
  Store(out, kVocabularyAt, header.vocabulary);
  Store(out, kEndOfDocumentAt, header.end_of_document);
  Store(out, kChunkBytesAt, header.chunk_bytes);
  Store(out, kIndexCrcAt, header.index_crc);
  Store(out, kChunkTableCrcAt, header.chunk_table_crc);
  std::memcpy(out.data() + kTokenizerAt, header.tokenizer.data(),
              std::min(header.tokenizer.size(), kTokenizerBytes));
  Store(out, kHeaderCrcAt, Crc32c(out.subspan(0, kHeaderCrcAt)));
  return bytes;
}

absl::StatusOr<ShardHeader> DecodeHeader(absl::Span<const std::byte> file) {
  if (file.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the file has %d bytes, fewer than the %d of a shard's header", file.size(), kHeaderBytes));
  }
  const absl::Span<const std::byte> bytes = file.subspan(0, kHeaderBytes);
  const std::string magic(reinterpret_cast<const char*>(bytes.data()) + kMagicAt, kMagic.size());
  const std::string ours(kMagic.data(), kMagic.size());
  if (magic != ours) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "magic is \"%s\", not \"%s\": not a token shard", absl::CHexEscape(magic), ours));
  }
  // Before the checksum, which another version may store elsewhere.
  if (const auto version = Load<uint32_t>(bytes, kVersionAt); version != kVersion) {
    return Refuse("version", version, absl::StrFormat("%d, the only supported version", kVersion));
  }
  const auto stored_crc = Load<uint32_t>(bytes, kHeaderCrcAt);
  if (const uint32_t crc = Crc32c(bytes.subspan(0, kHeaderCrcAt)); crc != stored_crc) {
    return absl::DataLossError(
        absl::StrFormat("header_crc is %08x, but the header's bytes have %08x", stored_crc, crc));
  }

  ShardHeader header;
  header.token_width = Load<uint32_t>(bytes, kTokenWidthAt);
  header.token_count = Load<uint64_t>(bytes, kTokenCountAt);
  header.document_count = Load<uint64_t>(bytes, kDocumentCountAt);
  header.vocabulary = Load<uint32_t>(bytes, kVocabularyAt);
  header.end_of_document = Load<uint32_t>(bytes, kEndOfDocumentAt);
  header.chunk_bytes = Load<uint32_t>(bytes, kChunkBytesAt);
  header.index_crc = Load<uint32_t>(bytes, kIndexCrcAt);
  header.chunk_table_crc = Load<uint32_t>(bytes, kChunkTableCrcAt);
  // Removes the padding zeros; Check() rejects zeros inside the label.
  header.tokenizer.assign(reinterpret_cast<const char*>(bytes.data()) + kTokenizerAt,
                          kTokenizerBytes);
  header.tokenizer.erase(header.tokenizer.find_last_not_of('\0') + 1);
  for (size_t i = kReservedAt; i < kHeaderCrcAt; ++i) {
    if (bytes[i] != std::byte{0}) {
      return Refuse(absl::StrFormat("reserved byte %d", i), std::to_integer<uint64_t>(bytes[i]),
                    "0");
    }
  }
  NIBBLE_RETURN_IF_ERROR(Check(header));
  return header;
}

}  // namespace shard_internal

namespace {

using shard_internal::DecodeHeader;
using shard_internal::kNoEndOfDocument;
using shard_internal::LayoutOf;
using shard_internal::ShardHeader;

absl::Status CheckCrc(const std::string& field, uint32_t stored,
                      absl::Span<const std::byte> bytes) {
  const uint32_t crc = Crc32c(bytes);
  if (crc == stored) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%s is %08x, but the %d bytes it covers have %08x",
                                             field, stored, bytes.size(), crc));
}

// Widens the tokens to `out`.
template <class T>
void Widen(const std::byte* tokens, uint64_t count, int32_t* out) {
  for (uint64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, tokens + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
  }
}

template <class T>
uint32_t Largest(const std::byte* tokens, uint64_t count) {
  T largest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, tokens + i * sizeof(T), sizeof(T));
    largest = std::max(largest, token);
  }
  return largest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenShard>> TokenShard::Open(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  return Open(path, std::move(file));
}

absl::StatusOr<std::unique_ptr<TokenShard>> TokenShard::Open(std::string path, MappedFile file) {
  std::unique_ptr<TokenShard> shard(new TokenShard(std::move(path), std::move(file)));
  if (absl::Status status = shard->Load(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(shard->path_, ": ", status.message()));
  }
  return shard;
}

std::string TokenShard::format() const {
  return absl::StrCat("token shard, version ", shard_internal::kVersion);
}

uint64_t TokenShard::DocumentEnd(uint64_t document) const {
  uint64_t end;
  std::memcpy(&end, index_ + document * sizeof(end), sizeof(end));
  return end;
}

absl::Status TokenShard::Load() {
  const absl::Span<const std::byte> bytes = file_.bytes();
  NIBBLE_ASSIGN_OR_RETURN(ShardHeader header, DecodeHeader(bytes));
  header_ = std::move(header);
  layout_ = LayoutOf(header_);
  if (bytes.size() != layout_.file_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the file has %d bytes, but token_count %d, token_width %d, document_count %d and "
        "chunk_bytes %d make %d",
        bytes.size(), header_.token_count, header_.token_width, header_.document_count,
        header_.chunk_bytes, layout_.file_bytes));
  }
  for (uint64_t i = layout_.data_begin + layout_.data_bytes; i < layout_.index_begin; ++i) {
    if (bytes[i] != std::byte{0}) {
      return absl::InvalidArgumentError(
          absl::StrFormat("padding byte %d is %d, not 0", i, std::to_integer<int>(bytes[i])));
    }
  }
  const auto index = bytes.subspan(layout_.index_begin, layout_.index_bytes);
  absl::Status status = CheckCrc("index_crc", header_.index_crc, index);
  if (!status.ok()) return status;
  const auto table = bytes.subspan(layout_.table_begin);
  status = CheckCrc("chunk_table_crc", header_.chunk_table_crc, table);
  if (!status.ok()) return status;

  data_ = bytes.data() + layout_.data_begin;
  index_ = index.data();
  table_ = table.data();
  sound_ = std::make_unique<std::atomic<bool>[]>(layout_.chunks);
  return CheckIndex();
}

absl::Status TokenShard::CheckIndex() const {
  uint64_t begin = 0;
  for (uint64_t d = 0; d < header_.document_count; ++d) {
    const uint64_t end = DocumentEnd(d);
    if (end <= begin || end > header_.token_count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("index: document %d ends at %d, not in (%d, token_count = %d]", d, end,
                          begin, header_.token_count));
    }
    begin = end;
  }
  if (begin != header_.token_count) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "index: the documents end at %d, not at token_count = %d", begin, header_.token_count));
  }
  return absl::OkStatus();
}

absl::Status TokenShard::CheckChunk(uint64_t chunk) const {
  const uint64_t begin = chunk * header_.chunk_bytes;
  const uint64_t size = std::min<uint64_t>(header_.chunk_bytes, layout_.data_bytes - begin);
  uint32_t crc;
  std::memcpy(&crc, table_ + chunk * sizeof(crc), sizeof(crc));
  absl::Status status =
      CheckCrc(absl::StrFormat("chunk_crc[%d]", chunk), crc, {data_ + begin, size});
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path_, ": ", status.message()));
  }
  const uint64_t count = size / header_.token_width;
  const uint32_t largest = header_.token_width == 2 ? Largest<uint16_t>(data_ + begin, count)
                                                    : Largest<uint32_t>(data_ + begin, count);
  if (largest >= header_.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: chunk %d contains token %d, not in [0, %d)", path_, chunk, largest,
                        header_.vocabulary));
  }
  sound_[chunk].store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status TokenShard::Read(int64_t first, int64_t count, int32_t* out) const {
  if (first < 0 || count < 0 || first > tokens() || count > tokens() - first) {
    return absl::OutOfRangeError(absl::StrFormat("%s: %d tokens from %d on are not inside [0, %d)",
                                                 path_, count, first, tokens()));
  }
  if (count == 0) return absl::OkStatus();
  const uint64_t begin = static_cast<uint64_t>(first) * header_.token_width;
  const uint64_t end = begin + static_cast<uint64_t>(count) * header_.token_width;
  for (uint64_t c = begin / header_.chunk_bytes; c * header_.chunk_bytes < end; ++c) {
    if (sound_[c].load(std::memory_order_relaxed)) continue;
    NIBBLE_RETURN_IF_ERROR(CheckChunk(c));
  }
  if (header_.token_width == 2) {
    Widen<uint16_t>(data_ + begin, static_cast<uint64_t>(count), out);
  } else {
    Widen<uint32_t>(data_ + begin, static_cast<uint64_t>(count), out);
  }
  return absl::OkStatus();
}

std::optional<int32_t> TokenShard::end_of_document() const {
  if (header_.end_of_document == kNoEndOfDocument) return std::nullopt;
  return static_cast<int32_t>(header_.end_of_document);
}

absl::Status TokenShard::Verify() const {
  for (uint64_t c = 0; c < layout_.chunks; ++c) {
    NIBBLE_RETURN_IF_ERROR(CheckChunk(c));
  }
  return absl::OkStatus();
}

}  // namespace nibble

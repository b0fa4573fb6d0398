#include "worker/trainer/data/shard_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/crc32c.h"

namespace nibble::shard_internal {
namespace {

// Integers are copied as they lie in memory.
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
  // Readers hand tokens out as int32.
  const uint64_t largest = header.token_width == 2 ? uint64_t{1} << 16 : uint64_t{1} << 31;
  if (header.vocabulary == 0 || header.vocabulary > largest) {
    return Refuse(
        "vocabulary", header.vocabulary,
        absl::StrFormat("in [1, %d], what token_width %d can hold", largest, header.token_width));
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
    return absl::InvalidArgumentError(absl::StrFormat("magic is \"%s\", not \"%s\": no token shard",
                                                      absl::CHexEscape(magic), ours));
  }
  // Before the checksum: another version may keep that elsewhere.
  if (const auto version = Load<uint32_t>(bytes, kVersionAt); version != kVersion) {
    return Refuse("version", version, absl::StrFormat("%d, the one known here", kVersion));
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
  // Zeros fill the label up; any that stand inside it stay, and Check() refuses them.
  header.tokenizer.assign(reinterpret_cast<const char*>(bytes.data()) + kTokenizerAt,
                          kTokenizerBytes);
  header.tokenizer.erase(header.tokenizer.find_last_not_of('\0') + 1);
  for (size_t i = kReservedAt; i < kHeaderCrcAt; ++i) {
    if (bytes[i] != std::byte{0}) {
      return Refuse(absl::StrFormat("reserved byte %d", i), std::to_integer<uint64_t>(bytes[i]),
                    "0");
    }
  }
  if (absl::Status status = Check(header); !status.ok()) return status;
  return header;
}

}  // namespace nibble::shard_internal

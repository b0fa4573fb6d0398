#include "worker/trainer/data/shard.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/shard_format.h"

namespace nibble {
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
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  return Open(path, *std::move(file));
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
  absl::StatusOr<ShardHeader> header = DecodeHeader(bytes);
  if (!header.ok()) return header.status();
  header_ = *std::move(header);
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
        absl::StrFormat("%s: chunk %d holds token %d, not below the vocabulary of %d", path_, chunk,
                        largest, header_.vocabulary));
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
    if (absl::Status status = CheckChunk(c); !status.ok()) return status;
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
    if (absl::Status status = CheckChunk(c); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nibble

#include "worker/trainer/data/shard_writer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "worker/trainer/data/shard.h"

namespace nibble {
namespace {

using shard_internal::Check;
using shard_internal::EncodeHeader;
using shard_internal::kMaxTokens;
using shard_internal::kNoEndOfDocument;
using shard_internal::LayoutOf;
using shard_internal::ShardHeader;
using shard_internal::ShardLayout;

template <class T>
absl::Span<const std::byte> BytesOf(const T* data, size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T)};
}

// Options that do not fit the header's fields become values that Check() rejects.
uint32_t Saturate(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}

absl::StatusOr<ShardHeader> HeaderFor(const ShardOptions& options) {
  ShardHeader header;
  header.token_width = options.token_width != 0                 ? Saturate(options.token_width)
                       : options.vocabulary <= int64_t{1} << 16 ? 2
                                                                : 4;
  header.vocabulary = Saturate(options.vocabulary);
  header.chunk_bytes = Saturate(options.chunk_bytes);
  header.tokenizer = options.tokenizer;
  if (options.end_of_document.has_value()) {
    if (*options.end_of_document < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("end_of_document is %d, not at least 0", *options.end_of_document));
    }
    header.end_of_document = static_cast<uint32_t>(*options.end_of_document);
  }
  NIBBLE_RETURN_IF_ERROR(Check(header));
  return header;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenShardWriter>> TokenShardWriter::Create(
    const std::string& path, const ShardOptions& options) {
  absl::StatusOr<ShardHeader> header = HeaderFor(options);
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        absl::StrCat(path, ": ", header.status().message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<StagedFile> file, StagedFile::Create(path));
  // A placeholder for the header, which is written after everything that it describes.
  const std::array<std::byte, shard_internal::kHeaderBytes> zeros = {};
  NIBBLE_RETURN_IF_ERROR(file->Append(zeros));
  return std::unique_ptr<TokenShardWriter>(
      new TokenShardWriter(std::move(file), *std::move(header)));
}

absl::Status TokenShardWriter::CheckWritable() const {
  if (error_.ok() && finished_) {
    return absl::FailedPreconditionError(absl::StrCat(path(), ": the shard is finished"));
  }
  return error_;
}

absl::Status TokenShardWriter::Append(absl::Span<const int32_t> tokens) {
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  error_ = AppendTokens(tokens);
  return error_;
}

absl::Status TokenShardWriter::AppendTokens(absl::Span<const int32_t> tokens) {
  if (tokens.size() > kMaxTokens - header_.token_count) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %d tokens after %d exceed the bound of %d", path(), tokens.size(),
                        header_.token_count, kMaxTokens));
  }
  std::array<std::byte, 4096> bytes;
  const size_t width = header_.token_width;
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), bytes.size() / width);
    for (size_t i = 0; i < count; ++i) {
      // Little-endian: the low bytes come first. A negative token is a large unsigned one.
      const auto token = static_cast<uint32_t>(tokens[i]);
      if (token >= header_.vocabulary) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: token %d at position %d is outside the vocabulary [0, %d)", path(),
                            tokens[i], header_.token_count + i, header_.vocabulary));
      }
      std::memcpy(bytes.data() + i * width, &token, width);
    }
    NIBBLE_RETURN_IF_ERROR(AppendData({bytes.data(), count * width}));
    header_.token_count += count;
    tokens.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status TokenShardWriter::AppendData(absl::Span<const std::byte> bytes) {
  uint64_t at = header_.token_count * header_.token_width;
  for (absl::Span<const std::byte> rest = bytes; !rest.empty();) {
    const uint64_t in_chunk = at % header_.chunk_bytes;
    if (in_chunk == 0) chunk_crc_.push_back(0);
    const size_t size = std::min<uint64_t>(rest.size(), header_.chunk_bytes - in_chunk);
    chunk_crc_.back() = ExtendCrc32c(chunk_crc_.back(), rest.subspan(0, size));
    rest.remove_prefix(size);
    at += size;
  }
  return file_->Append(bytes);
}

absl::Status TokenShardWriter::EndDocument() {
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  if (header_.end_of_document != kNoEndOfDocument) {
    const auto token = static_cast<int32_t>(header_.end_of_document);
    NIBBLE_RETURN_IF_ERROR(Append(absl::MakeConstSpan(&token, 1)));
  }
  const uint64_t begin = document_end_.empty() ? 0 : document_end_.back();
  if (header_.token_count == begin) {
    error_ = absl::InvalidArgumentError(
        absl::StrFormat("%s: document %d has no token", path(), document_end_.size()));
    return error_;
  }
  document_end_.push_back(header_.token_count);
  return absl::OkStatus();
}

absl::Status TokenShardWriter::Finish() {
  if (error_.ok() && !finished_) error_ = WriteRest();
  finished_ = true;
  return error_;
}

absl::Status TokenShardWriter::WriteRest() {
  const uint64_t ended = document_end_.empty() ? 0 : document_end_.back();
  if (header_.token_count != ended) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: document %d was not ended, %d tokens into it", path(),
                        document_end_.size(), header_.token_count - ended));
  }
  header_.document_count = document_end_.size();
  const ShardLayout layout = LayoutOf(header_);
  const auto index = BytesOf(document_end_.data(), document_end_.size());
  const auto table = BytesOf(chunk_crc_.data(), chunk_crc_.size());
  header_.index_crc = Crc32c(index);
  header_.chunk_table_crc = Crc32c(table);

  const std::array<std::byte, 8> zeros = {};
  const size_t padding = layout.index_begin - layout.data_begin - layout.data_bytes;
  NIBBLE_RETURN_IF_ERROR(file_->Append({zeros.data(), padding}));
  NIBBLE_RETURN_IF_ERROR(file_->Append(index));
  NIBBLE_RETURN_IF_ERROR(file_->Append(table));
  NIBBLE_RETURN_IF_ERROR(file_->Overwrite(0, EncodeHeader(header_)));
  return file_->Sync();
}

absl::Status TokenShardWriter::Commit() {
  NIBBLE_RETURN_IF_ERROR(Finish());
  return file_->Publish();
}

}  // namespace nibble

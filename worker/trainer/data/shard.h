// Token shards (format: docs/formats/token-shards.md): the layout of the file, shared with
// TokenShardWriter, and the reader.
//
// Ownership: a TokenShard owns its mapping. The file must not be written to in place while it is
// open (see mapped_file.h); TokenShardWriter replaces files, which is safe.
// Thread-safety: const methods may be called from any thread; two threads that first read one chunk
// both check it.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SHARD_H_
#define NIBBLE_WORKER_TRAINER_DATA_SHARD_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

namespace shard_internal {

inline constexpr std::array<char, 8> kMagic = {'N', 'B', 'T', 'O', 'K', 'E', 'N', 'S'};
inline constexpr uint64_t kHeaderBytes = 128;
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kNoEndOfDocument = 0xffffffffu;
inline constexpr size_t kTokenizerBytes = 32;
// Keeps every product and sum of sizes far from overflow: a petabyte of 4-byte tokens.
inline constexpr uint64_t kMaxTokens = uint64_t{1} << 48;
inline constexpr uint32_t kMinChunkBytes = 64;
inline constexpr uint32_t kMaxChunkBytes = uint32_t{1} << 30;

struct ShardHeader {
  uint32_t token_width = 2;  // bytes
  uint64_t token_count = 0;
  uint64_t document_count = 0;
  uint32_t vocabulary = 0;
  uint32_t end_of_document = kNoEndOfDocument;
  uint32_t chunk_bytes = 0;
  uint32_t index_crc = 0;
  uint32_t chunk_table_crc = 0;
  std::string tokenizer;
};

// In bytes; offsets are from the beginning of the file and multiples of 8. Zeros fill the gap
// between data and index.
struct ShardLayout {
  uint64_t data_begin = kHeaderBytes;
  uint64_t data_bytes = 0;
  uint64_t index_begin = 0;
  uint64_t index_bytes = 0;
  uint64_t table_begin = 0;
  uint64_t chunks = 0;
  uint64_t file_bytes = 0;
};

// InvalidArgument naming the field, its value and its bound.
absl::Status Check(const ShardHeader& header);

// `header` has passed Check().
ShardLayout LayoutOf(const ShardHeader& header);

std::array<std::byte, kHeaderBytes> EncodeHeader(const ShardHeader& header);

// Decodes and checks the header at the beginning of a file.
//
//   InvalidArgument  too few bytes, another magic or version, or a field that Check() rejects
//   DataLoss         the header's checksum does not match
absl::StatusOr<ShardHeader> DecodeHeader(absl::Span<const std::byte> file);

}  // namespace shard_internal

// Reads a shard. The file is not trusted: Open() checks header, sizes and document index, and the
// first Read() of a chunk checks it against its checksum and the vocabulary. So a changed byte is
// never read as a token: it is an error of Open() or of the first Read() of its chunk.
class TokenShard final : public TokenSource {
 public:
  // Messages name the path and the field.
  //
  //   InvalidArgument  a rule of the format is broken, or the version is unknown
  //   DataLoss         a checksum of header, index or chunk table does not match
  //   FailedPrecondition, NotFound, PermissionDenied, ...  as MappedFile::Open()
  static absl::StatusOr<std::unique_ptr<TokenShard>> Open(const std::string& path);
  // Takes a mapped file; `path` is for messages.
  static absl::StatusOr<std::unique_ptr<TokenShard>> Open(std::string path, MappedFile file);

  const std::string& name() const override { return path_; }
  const std::string& tokenizer() const override { return header_.tokenizer; }
  int64_t vocabulary() const override { return header_.vocabulary; }
  int64_t tokens() const override { return static_cast<int64_t>(header_.token_count); }
  int64_t documents() const override { return static_cast<int64_t>(header_.document_count); }
  std::string format() const override;
  int token_width() const override { return static_cast<int>(header_.token_width); }
  // The token that ends every document, if there is one.
  std::optional<int32_t> end_of_document() const override;
  int64_t DocumentBegin(int64_t document) const override {
    return document == 0 ? 0 : static_cast<int64_t>(DocumentEnd(document - 1));
  }
  absl::Status Read(int64_t first, int64_t count, int32_t* out) const override;
  // Checks every chunk, whether checked before or not.
  absl::Status Verify() const override;

 private:
  TokenShard(std::string path, MappedFile file) : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status Load();
  uint64_t DocumentEnd(uint64_t document) const;
  absl::Status CheckIndex() const;
  absl::Status CheckChunk(uint64_t chunk) const;

  const std::string path_;
  const MappedFile file_;
  shard_internal::ShardHeader header_;
  shard_internal::ShardLayout layout_;
  // Into the mapping.
  const std::byte* data_ = nullptr;
  const std::byte* index_ = nullptr;  // [documents] uint64
  const std::byte* table_ = nullptr;  // [chunks] uint32
  // [chunks]: whether it has passed its check. Relaxed order is enough: the data never change.
  std::unique_ptr<std::atomic<bool>[]> sound_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SHARD_H_

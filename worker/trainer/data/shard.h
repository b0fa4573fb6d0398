// Reads token shards (format: docs/formats/token-shards.md): tokens, mapped from disk, with the
// documents they form.
//
// The file is trusted in nothing. Open() checks header, sizes and document index; a chunk of data
// is checked, against its checksum and the vocabulary, when a token of it is first read. So no
// changed byte ever comes out as a token: it is an error at Open() or at the first Read() of its
// chunk.
//
// Ownership: holds the mapping. The file must not be written to in place while it is open (see
// mapped_file.h); ShardWriter replaces files, which is safe.
// Thread-safety: const methods may be called from any thread; two that first touch one chunk both
// check it.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SHARD_H_
#define NIBBLE_WORKER_TRAINER_DATA_SHARD_H_

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
#include "worker/trainer/data/shard_format.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

class TokenShard final : public TokenSource {
 public:
  // Messages name the path and the field.
  //
  //   InvalidArgument  a rule of the format is broken, or the version is unknown
  //   DataLoss         a checksum of header, index or chunk table disagrees
  //   FailedPrecondition, NotFound, PermissionDenied, ...  as MappedFile::Open()
  static absl::StatusOr<std::unique_ptr<TokenShard>> Open(const std::string& path);
  // Of a file that is mapped already; `path` is for messages.
  static absl::StatusOr<std::unique_ptr<TokenShard>> Open(std::string path, MappedFile file);

  const std::string& name() const override { return path_; }
  const std::string& tokenizer() const override { return header_.tokenizer; }
  int64_t vocabulary() const override { return header_.vocabulary; }
  int64_t tokens() const override { return static_cast<int64_t>(header_.token_count); }
  int64_t documents() const override { return static_cast<int64_t>(header_.document_count); }
  std::string format() const override;
  int token_width() const override { return static_cast<int>(header_.token_width); }
  // The token that ends every document, where there is one.
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
  // [chunks]: found sound. Relaxed order is enough: what it guards never changes.
  std::unique_ptr<std::atomic<bool>[]> sound_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SHARD_H_

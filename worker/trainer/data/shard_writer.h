// Writes token shards (format: docs/formats/token-shards.md) atomically. Equal documents and
// options give equal bytes.
//
// Tokens are written when they are appended; 8 bytes per document and 4 per chunk stay in memory.
//
// Ownership: owns the temporary file, which is removed unless Commit() succeeded.
// Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SHARD_WRITER_H_
#define NIBBLE_WORKER_TRAINER_DATA_SHARD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/staged_file.h"
#include "worker/trainer/data/shard.h"

namespace nibble {

struct ShardOptions {
  std::string tokenizer;   // Tokenizer::label(): 1 to 32 printable ASCII characters
  int64_t vocabulary = 0;  // tokens are in [0, vocabulary); at most 2^31
  // If set, appended to every document.
  std::optional<int32_t> end_of_document;
  // Bytes per token, 2 or 4; 0: the smaller that fits the vocabulary.
  int token_width = 0;
  // Bytes under one checksum: a power of two from 64 to 2^30. The amount lost to one damaged byte,
  // and the amount checked when any of its tokens is first read.
  int64_t chunk_bytes = int64_t{1} << 20;
};

class TokenShardWriter {
 public:
  // InvalidArgument naming the option, its value and its bound; otherwise as StagedFile::Create().
  static absl::StatusOr<std::unique_ptr<TokenShardWriter>> Create(const std::string& path,
                                                                  const ShardOptions& options);

  // Adds tokens to the current document. The first error of any method except Commit() is returned
  // by every later call, so that an incomplete shard is never committed.
  //
  //   InvalidArgument    a token is outside the vocabulary
  //   ResourceExhausted  the disk is full, or the format's bound on tokens is reached
  absl::Status Append(absl::Span<const int32_t> tokens);

  // Ends the document, with the end-of-document token if there is one. InvalidArgument if the
  // document is empty.
  absl::Status EndDocument();

  // Writes the rest and makes it durable under the temporary name, so that Commit() only has to
  // rename. FailedPrecondition inside a document; later Append() calls return FailedPrecondition.
  absl::Status Finish();

  // Calls Finish() if it has not been called and publishes the shard (see StagedFile::Publish()).
  // Call once.
  absl::Status Commit();

  const std::string& path() const { return file_->path(); }
  int64_t tokens() const { return static_cast<int64_t>(header_.token_count); }
  int64_t documents() const { return static_cast<int64_t>(document_end_.size()); }

 private:
  TokenShardWriter(std::unique_ptr<StagedFile> file, shard_internal::ShardHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  absl::Status CheckWritable() const;
  absl::Status AppendTokens(absl::Span<const int32_t> tokens);
  // Adds data bytes, a multiple of the token width, to the chunk checksums and the file.
  absl::Status AppendData(absl::Span<const std::byte> bytes);
  absl::Status WriteRest();

  std::unique_ptr<StagedFile> file_;
  shard_internal::ShardHeader header_;  // counts so far; checksums are set by Finish()
  std::vector<uint64_t> document_end_;
  std::vector<uint32_t> chunk_crc_;  // the last chunk may be incomplete
  bool finished_ = false;
  absl::Status error_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SHARD_WRITER_H_

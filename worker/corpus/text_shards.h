// Text files to token shards: a training shard and a validation shard of held-out documents,
// encoded on several threads.
//
// Ownership: a ParallelEncoder owns its threads and the text and tokens of a round; it borrows the
// tokenizer. Thread-safety: one thread at a time per ParallelEncoder; calls of the functions are
// independent unless they write to one directory.
#ifndef NIBBLE_WORKER_CORPUS_TEXT_SHARDS_H_
#define NIBBLE_WORKER_CORPUS_TEXT_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "worker/corpus/text_corpus.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

// Encodes documents on several threads and delivers their tokens in the order of the documents; the
// result does not depend on the number of threads.
//
// Documents are collected into rounds of about a megabyte of text per thread; the pieces of a round
// (see Tokenizer::PieceEnd) are encoded in parallel and then delivered. Long documents are cut into
// pieces, so that they need no more memory than a round, unless they cannot be cut.
class ParallelEncoder {
 public:
  // A piece of the document with this number; Add() numbers them from 0.
  struct Encoded {
    int64_t document = 0;
    int64_t offset = 0;  // of the piece in its document, in bytes
    int64_t bytes = 0;
    bool ends_document = false;
    absl::Span<const int32_t> tokens;  // valid during the call
  };
  using Deliver = std::function<absl::Status(const Encoded&)>;
  // A document's name, for error messages.
  using Name = std::function<std::string(int64_t document)>;

  // The size of a round, per thread.
  static constexpr size_t kRoundBytes = size_t{1} << 20;
  static constexpr size_t kRoundPieces = 4096;

  // `threads` as for ThreadPool. `deliver` is called in the thread of Add() and Finish().
  // `round_bytes`: over all threads; 0: the default.
  ParallelEncoder(const Tokenizer& tokenizer, int threads, Name name, Deliver deliver,
                  size_t round_bytes = 0);

  // Takes a document, which need not outlive the call. Must not be called again after an error.
  //
  // Errors: those of Tokenizer::EncodePiece() for this document or an earlier one, prefixed with
  // its name; if several fail, that of the first document, and nothing after it was delivered. Also
  // those of `deliver`.
  absl::Status Add(std::string_view text);

  // Delivers the remaining pieces. Call once, after the last document.
  absl::Status Finish();

 private:
  struct Piece {
    std::string_view text;
    int64_t document;
    int64_t offset;
    bool ends_document;
    absl::Status status;
  };

  absl::Status Flush();

  const Tokenizer& tokenizer_;
  ThreadPool pool_;
  const Name name_;
  const Deliver deliver_;
  const size_t round_bytes_;
  int64_t documents_ = 0;
  std::string texts_;                         // of small documents; never grows past its capacity
  std::vector<Piece> pieces_;                 // of the round, in order
  size_t pending_bytes_ = 0;                  // of those
  std::vector<std::vector<int32_t>> tokens_;  // [at least pieces]
};

// The progress of a PrepareText() call.
struct TextProgress {
  int64_t bytes = 0;  // of the files, tokenized so far
  int64_t total_bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
};

struct PrepareTextOptions {
  std::vector<std::string> inputs;      // files and directories: see ListTextFiles()
  std::vector<std::string> extensions;  // of a directory's files; none: all
  DocumentSplit split;
  // Where "train.tokens" and "validation.tokens" are written. Created if its parent exists.
  std::string output_dir;
  double validation_fraction = 0;  // of the documents, in [0, 1); 0: no validation shard
  uint64_t seed = 0;               // of the choice of held-out documents
  // Replace existing shards; otherwise they are an error.
  bool overwrite = false;
  // Tokenizing threads, including the caller; 0: one per processor. Does not affect the shards.
  int threads = 1;
  // Called in the caller's thread for every document and about every 64 KiB of a long one; the last
  // call, after the last document, has bytes == total_bytes.
  std::function<void(const TextProgress&)> progress;
};

struct TextShard {
  std::string path;
  int64_t documents = 0;
  int64_t tokens = 0;  // with ends of documents
  int64_t bytes = 0;   // of text
};

struct PreparedText {
  int64_t files = 0;
  SkippedDocuments skipped;
  TextShard train;
  std::optional<TextShard> validation;
};

// Makes the checks of PrepareText() that need no text: options out of bounds, and existing shards
// that may not be replaced. For callers with long work to do before PrepareText().
absl::Status CheckPrepareText(const PrepareTextOptions& options);

// Writes each document to one shard, followed by the tokenizer's end of document: a held-out
// document never occurs in training (copies of it under other numbers may: see HoldOut). Equal
// files and options give equal bytes. Both shards are published together, when both are complete;
// after an error neither is. The training shard is published last: after a crash, its presence
// means that both are complete.
//
//   InvalidArgument  an option out of bounds, an input that is not text or that the tokenizer
//                    cannot encode (names file, document and byte), or a shard without any document
//   AlreadyExists    a shard exists and may not be replaced
//   any other        reading or writing files failed
absl::StatusOr<PreparedText> PrepareText(const PrepareTextOptions& options,
                                         const Tokenizer& tokenizer);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CORPUS_TEXT_SHARDS_H_

// Encodes documents on several threads and hands their tokens on in the documents' order: what
// comes out does not depend on the number of threads.
//
// Documents are collected into rounds of about a megabyte of text per thread; the pieces of a round
// (see Tokenizer::PieceEnd) are encoded in parallel and then handed on. A long document is cut into
// pieces like the rest, so that it needs no more memory than a round; one without a place to be cut
// at is one piece.
//
// Ownership: owns its threads and a round's text and tokens; borrows the tokenizer.
// Thread-safety: one thread at a time; `deliver` is called in it.
#ifndef NIBBLE_WORKER_TRAINER_DATA_PARALLEL_ENCODER_H_
#define NIBBLE_WORKER_TRAINER_DATA_PARALLEL_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

class ParallelEncoder {
 public:
  // A piece of document `document`, as Add() numbers them from 0.
  struct Encoded {
    int64_t document = 0;
    int64_t offset = 0;  // of the piece in its document, in bytes
    int64_t bytes = 0;
    bool ends_document = false;
    absl::Span<const int32_t> tokens;  // for the length of the call
  };
  using Deliver = std::function<absl::Status(const Encoded&)>;
  // Gives a document's name to the message of an error in it.
  using Name = std::function<std::string(int64_t document)>;

  // Of a round, per thread.
  static constexpr size_t kRoundBytes = size_t{1} << 20;
  static constexpr size_t kRoundPieces = 4096;

  // `threads` as of ThreadPool. `round_bytes`, at least 1, is of all threads together; 0: the
  // default.
  ParallelEncoder(const Tokenizer& tokenizer, int threads, Name name, Deliver deliver,
                  size_t round_bytes = 0);

  // Takes a document, which need not outlive the call. Not to be called again after an error.
  //
  //   as Tokenizer::EncodePiece(), of this document or an earlier one, with its name in front; of
  //   several errors that of the first document comes out, and nothing behind it was delivered
  //   as `deliver`
  absl::Status Add(std::string_view text);

  // Delivers what is left of the documents added. Once, after the last.
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

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_PARALLEL_ENCODER_H_

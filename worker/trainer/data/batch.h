// What a step of training or validation sees: sequences of tokens, what follows each token, and
// where each token's document began. Filled one window of a token source at a time.
//
// Ownership: a batch owns its arrays. Thread-safety: none for a batch being filled; sequences of
// one batch may be filled by several threads at once.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BATCH_H_
#define NIBBLE_WORKER_TRAINER_DATA_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

// A target that counts for nothing in the loss.
inline constexpr int32_t kIgnoredTarget = -1;

struct Batch {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens;     // [sequences, length], row-major
  std::vector<int32_t> targets;    // [sequences, length]: the token that follows, or kIgnoredTarget
  std::vector<int32_t> doc_begin;  // [sequences, length]: see WindowOptions::reset_at_documents

  friend bool operator==(const Batch&, const Batch&) = default;
};

// Indices of a batch's tokens fit 32 bits.
inline constexpr int64_t kMaxBatchTokens = (int64_t{1} << 31) - 1;

// Of zeros. InvalidArgument naming what is not at least 1, or is with the other above
// kMaxBatchTokens.
absl::StatusOr<Batch> MakeBatch(int64_t sequences, int64_t length);

struct WindowOptions {
  // doc_begin[i] is the index within the sequence of the first token of token i's document, 0 when
  // that began before the sequence: recurrent state, convolution and attention are cut there. Off:
  // all zeros, and documents run into each other.
  bool reset_at_documents = true;
  // Ignores the one target per document boundary that is the first token of a new document, which
  // nothing before it tells. End-of-document tokens stay targets. Off: nothing is ignored.
  bool ignore_first_of_document = false;
};

// Fills sequence `row` with window `index` of the source: tokens index·length … +length, the last
// of which is only a target. OutOfRange when the row is not in the batch; otherwise as
// TokenSource::Read().
absl::Status FillSequence(const TokenSource& source, int64_t index, const WindowOptions& options,
                          int64_t row, Batch& batch);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BATCH_H_

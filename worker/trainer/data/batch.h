// Batches: the sequences of a training or validation step, and how a global batch is divided among
// ranks and micro-batches.
//
// Ownership: a batch owns its arrays. Thread-safety: none for a batch that is being filled, except
// that several threads may fill different sequences of it.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BATCH_H_
#define NIBBLE_WORKER_TRAINER_DATA_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

// A part of a global batch: micro-batch m of M of rank r of R. With n = global_sequences/(R·M) it
// has the sequences (r·M + m)·n … (r·M + m + 1)·n − 1, so that the micro-batches of rank 0, then
// those of rank 1 and so on give the global batch in order, for any R and M.
struct BatchSlice {
  int64_t step = 0;  // which global batch, from 0
  int64_t rank = 0;
  int64_t world = 1;
  int64_t micro = 0;  // of this rank's micro-batches
  int64_t micros = 1;
};

// Global indices first … first + count − 1; see Sampler.
struct IndexRange {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// InvalidArgument, naming the field, its value and its bound, unless global_sequences is a positive
// multiple of world · micros, rank is in [0, world), micro in [0, micros), and the indices of the
// step are below 2^62.
absl::StatusOr<IndexRange> SliceRange(int64_t global_sequences, const BatchSlice& slice);

// A target that the loss ignores.
inline constexpr int32_t kIgnoredTarget = -1;

// Sequences of tokens with their targets and the beginnings of their documents.
struct Batch {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens;     // [sequences, length], row-major
  std::vector<int32_t> targets;    // [sequences, length]: the token that follows, or kIgnoredTarget
  std::vector<int32_t> doc_begin;  // [sequences, length]: see WindowOptions::reset_at_documents

  friend bool operator==(const Batch&, const Batch&) = default;
};

// Token indices within a batch fit 32 bits.
inline constexpr int64_t kMaxBatchTokens = (int64_t{1} << 31) - 1;

// A batch of zeros. InvalidArgument if an argument is below 1 or their product is above
// kMaxBatchTokens.
absl::StatusOr<Batch> MakeBatch(int64_t sequences, int64_t length);

struct WindowOptions {
  // doc_begin[i] is the index within the sequence of the first token of token i's document, 0 if
  // that is before the sequence: recurrent state, convolution and attention are reset there. Off:
  // all zeros, and documents are not separated.
  bool reset_at_documents = true;
  // Ignores the targets that are the first token of a document, which cannot be predicted from what
  // precedes them. End-of-document tokens stay targets. Off: nothing is ignored.
  bool ignore_first_of_document = false;
};

// Fills sequence `row` with window `index` of the source: tokens index·length … (index + 1)·length,
// the last of which is only a target. OutOfRange if the row is not in the batch; otherwise as
// TokenSource::Read().
absl::Status FillSequence(const TokenSource& source, int64_t index, const WindowOptions& options,
                          int64_t row, Batch& batch);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BATCH_H_

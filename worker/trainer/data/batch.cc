#include "worker/trainer/data/batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

namespace {

constexpr int64_t kMaxIndex = int64_t{1} << 62;

absl::Status CheckIn(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d, not in [%d, %d]", field, value, low, high));
}

}  // namespace

absl::StatusOr<IndexRange> SliceRange(int64_t global_sequences, const BatchSlice& slice) {
  absl::Status status = CheckIn("global_sequences", global_sequences, 1, kMaxIndex);
  // A divisor of the number of sequences is at most that number.
  if (status.ok()) status = CheckIn("world", slice.world, 1, global_sequences);
  if (status.ok()) status = CheckIn("micros", slice.micros, 1, global_sequences);
  if (status.ok()) status = CheckIn("rank", slice.rank, 0, slice.world - 1);
  if (status.ok()) status = CheckIn("micro", slice.micro, 0, slice.micros - 1);
  if (status.ok()) status = CheckIn("step", slice.step, 0, kMaxIndex / global_sequences - 1);
  if (!status.ok()) return status;
  if (global_sequences % slice.world != 0 || global_sequences / slice.world % slice.micros != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("global_sequences is %d, not a multiple of world %d times micros %d",
                        global_sequences, slice.world, slice.micros));
  }
  const int64_t count = global_sequences / slice.world / slice.micros;
  const int64_t place = (slice.rank * slice.micros + slice.micro) * count;
  return IndexRange{.first = slice.step * global_sequences + place, .count = count};
}

absl::StatusOr<Batch> MakeBatch(int64_t sequences, int64_t length) {
  if (length < 1 || length > kMaxBatchTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("length is %d, not in [1, %d]", length, kMaxBatchTokens));
  }
  if (sequences < 1 || sequences > kMaxBatchTokens / length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a batch of %d sequences of %d tokens does not have 1 to %d tokens",
                        sequences, length, kMaxBatchTokens));
  }
  Batch batch{.sequences = sequences, .length = length};
  const auto size = static_cast<size_t>(sequences * length);
  batch.tokens.resize(size);
  batch.targets.resize(size);
  batch.doc_begin.resize(size);
  return batch;
}

absl::Status FillSequence(const TokenSource& source, int64_t index, const WindowOptions& options,
                          int64_t row, Batch& batch) {
  if (row < 0 || row >= batch.sequences) {
    return absl::OutOfRangeError(
        absl::StrFormat("row is %d, not in [0, %d)", row, batch.sequences));
  }
  const int64_t length = batch.length;
  if (index < 0 || index > source.tokens() / length) {
    return absl::OutOfRangeError(absl::StrFormat("%s: window %d of %d tokens is not inside [0, %d)",
                                                 source.name(), index, length, source.tokens()));
  }
  const int64_t first = index * length;
  int32_t* tokens = batch.tokens.data() + row * length;
  int32_t* targets = batch.targets.data() + row * length;
  int32_t* doc_begin = batch.doc_begin.data() + row * length;

  NIBBLE_RETURN_IF_ERROR(source.Read(first, length, tokens));
  NIBBLE_RETURN_IF_ERROR(source.Read(first + length, 1, targets + length - 1));
  std::copy(tokens + 1, tokens + length, targets);

  int64_t begin = 0;  // of the current document, within the window
  // The beginnings of later documents, until past the last target.
  for (int64_t d = source.DocumentOf(first) + 1; d < source.documents(); ++d) {
    const int64_t next = source.DocumentBegin(d) - first;
    if (next > length) break;
    if (options.ignore_first_of_document) targets[next - 1] = kIgnoredTarget;
    if (options.reset_at_documents) {
      std::fill(doc_begin + begin, doc_begin + next, static_cast<int32_t>(begin));
      begin = next;
    }
  }
  std::fill(doc_begin + begin, doc_begin + length, static_cast<int32_t>(begin));
  return absl::OkStatus();
}

}  // namespace nibble

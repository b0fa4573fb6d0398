#include "worker/trainer/data/validation_set.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/batch_slice.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

absl::StatusOr<ValidationSet> ValidationSet::Create(std::shared_ptr<const TokenSource> source,
                                                    const ValidationOptions& options) {
  if (source == nullptr) return absl::InvalidArgumentError("the validation set has no source");
  if (options.length < 1 || options.length > kMaxBatchTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("length is %d, not in [1, %d]", options.length, kMaxBatchTokens));
  }
  if (options.max_batches < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_batches is %d, not at least 0", options.max_batches));
  }
  const absl::StatusOr<IndexRange> whole = SliceRange(options.global_sequences, {});
  if (!whole.ok()) return whole.status();
  const int64_t windows = SampleCount(source->tokens(), options.length);
  if (windows < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tokens is %d, not at least the %d of one window", source->name(),
                        source->tokens(), options.length + 1));
  }
  int64_t batches = (windows - 1) / options.global_sequences + 1;
  if (options.max_batches > 0) batches = std::min(batches, options.max_batches);
  return ValidationSet(std::move(source), options, windows, batches);
}

absl::StatusOr<Batch> ValidationSet::Build(const BatchSlice& slice) const {
  const absl::StatusOr<IndexRange> range = SliceRange(options_.global_sequences, slice);
  if (!range.ok()) return range.status();
  if (slice.step >= batches_) {
    return absl::OutOfRangeError(
        absl::StrFormat("validation batch %d is not in [0, %d)", slice.step, batches_));
  }
  absl::StatusOr<Batch> batch = MakeBatch(range->count, options_.length);
  if (!batch.ok()) return batch.status();
  for (int64_t row = 0; row < range->count; ++row) {
    const int64_t window = range->first + row;
    absl::Status status =
        FillSequence(*source_, std::min(window, windows_ - 1), options_.window, row, *batch);
    if (!status.ok()) return status;
    if (window >= windows_) {
      std::fill_n(batch->targets.begin() + row * options_.length, options_.length, kIgnoredTarget);
    }
  }
  return batch;
}

}  // namespace nibble

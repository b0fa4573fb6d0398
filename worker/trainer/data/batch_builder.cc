#include "worker/trainer/data/batch_builder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

namespace {

using Sources = std::vector<std::shared_ptr<const TokenSource>>;

// The number of samples of each source; checks the sources against each other and the options.
absl::StatusOr<std::vector<int64_t>> CountSamples(const Sources& sources,
                                                  const BatchOptions& options) {
  if (options.length < 1 || options.length > kMaxBatchTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("length is %d, not in [1, %d]", options.length, kMaxBatchTokens));
  }
  NIBBLE_RETURN_IF_ERROR(SliceRange(options.global_sequences, {}).status());
  std::vector<int64_t> samples;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrFormat("data set %d has no source", i));
    }
    const TokenSource& source = *sources[i];
    const TokenSource& front = *sources.front();
    if (source.tokenizer() != front.tokenizer() || source.vocabulary() != front.vocabulary()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tokenizer \"%s\" with %d tokens differs from that of %s, \"%s\" with %d",
          source.name(), source.tokenizer(), source.vocabulary(), front.name(), front.tokenizer(),
          front.vocabulary()));
    }
    samples.push_back(SampleCount(source.tokens(), options.length));
    if (samples.back() < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tokens is %d, not at least the %d of one sample", source.name(),
                          source.tokens(), options.length + 1));
    }
  }
  return samples;
}

}  // namespace

absl::StatusOr<BatchBuilder> BatchBuilder::Create(std::vector<BlendedSource> sources,
                                                  const BatchOptions& options) {
  Sources shared;
  for (BlendedSource& source : sources) shared.push_back(std::move(source.source));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int64_t> samples, CountSamples(shared, options));
  std::vector<SampledDataset> datasets;
  for (size_t i = 0; i < sources.size(); ++i) {
    datasets.push_back({.samples = samples[i], .weight = sources[i].weight});
  }
  NIBBLE_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(options.seed, datasets));
  return BatchBuilder(std::move(shared), std::move(sampler), options);
}

absl::StatusOr<BatchBuilder> BatchBuilder::Create(Sources sources, std::vector<BlendPhase> phases,
                                                  int64_t steps, const BatchOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int64_t> samples, CountSamples(sources, options));
  NIBBLE_ASSIGN_OR_RETURN(
      Sampler sampler,
      Sampler::Create(
          options.seed, samples,
          {.phases = std::move(phases), .steps = steps, .sequences = options.global_sequences}));
  return BatchBuilder(std::move(sources), std::move(sampler), options);
}

absl::StatusOr<Batch> BatchBuilder::Build(const BatchSlice& slice) const {
  NIBBLE_ASSIGN_OR_RETURN(const IndexRange range, SliceRange(options_.global_sequences, slice));
  NIBBLE_ASSIGN_OR_RETURN(Batch batch, MakeBatch(range.count, options_.length));
  for (int64_t row = 0; row < range.count; ++row) {
    const Sample sample = sampler_.SampleAt(range.first + row);
    NIBBLE_RETURN_IF_ERROR(
        FillSequence(*sources_[sample.dataset], sample.index, options_.window, row, batch));
  }
  return batch;
}

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
  NIBBLE_RETURN_IF_ERROR(SliceRange(options.global_sequences, {}).status());
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
  NIBBLE_ASSIGN_OR_RETURN(const IndexRange range, SliceRange(options_.global_sequences, slice));
  if (slice.step >= batches_) {
    return absl::OutOfRangeError(
        absl::StrFormat("validation batch %d is not in [0, %d)", slice.step, batches_));
  }
  NIBBLE_ASSIGN_OR_RETURN(Batch batch, MakeBatch(range.count, options_.length));
  for (int64_t row = 0; row < range.count; ++row) {
    const int64_t window = range.first + row;
    NIBBLE_RETURN_IF_ERROR(
        FillSequence(*source_, std::min(window, windows_ - 1), options_.window, row, batch));
    if (window >= windows_) {
      std::fill_n(batch.targets.begin() + row * options_.length, options_.length, kIgnoredTarget);
    }
  }
  return batch;
}

}  // namespace nibble

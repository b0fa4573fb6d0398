#include "worker/trainer/data/batch_builder.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/batch_slice.h"
#include "worker/trainer/data/phased_blend.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

namespace {

using Sources = std::vector<std::shared_ptr<const TokenSource>>;

// How many samples each source has, where they fit together and the options fit them.
absl::StatusOr<std::vector<int64_t>> CountSamples(const Sources& sources,
                                                  const BatchOptions& options) {
  if (options.length < 1 || options.length > kMaxBatchTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("length is %d, not in [1, %d]", options.length, kMaxBatchTokens));
  }
  const absl::StatusOr<IndexRange> whole = SliceRange(options.global_sequences, {});
  if (!whole.ok()) return whole.status();
  std::vector<int64_t> samples;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrFormat("data set %d has no source", i));
    }
    const TokenSource& source = *sources[i];
    const TokenSource& front = *sources.front();
    if (source.tokenizer() != front.tokenizer() || source.vocabulary() != front.vocabulary()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tokenizer \"%s\" of %d tokens is not that of %s, \"%s\" of %d",
                          source.name(), source.tokenizer(), source.vocabulary(), front.name(),
                          front.tokenizer(), front.vocabulary()));
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
  const absl::StatusOr<std::vector<int64_t>> samples = CountSamples(shared, options);
  if (!samples.ok()) return samples.status();
  std::vector<SampledDataset> datasets;
  for (size_t i = 0; i < sources.size(); ++i) {
    datasets.push_back({.samples = (*samples)[i], .weight = sources[i].weight});
  }
  absl::StatusOr<Sampler> sampler = Sampler::Create(options.seed, datasets);
  if (!sampler.ok()) return sampler.status();
  return BatchBuilder(std::move(shared), *std::move(sampler), options);
}

absl::StatusOr<BatchBuilder> BatchBuilder::Create(Sources sources, std::vector<BlendPhase> phases,
                                                  int64_t steps, const BatchOptions& options) {
  const absl::StatusOr<std::vector<int64_t>> samples = CountSamples(sources, options);
  if (!samples.ok()) return samples.status();
  absl::StatusOr<Sampler> sampler = Sampler::Create(
      options.seed, *samples,
      {.phases = std::move(phases), .steps = steps, .sequences = options.global_sequences});
  if (!sampler.ok()) return sampler.status();
  return BatchBuilder(std::move(sources), *std::move(sampler), options);
}

absl::StatusOr<Batch> BatchBuilder::Build(const BatchSlice& slice) const {
  const absl::StatusOr<IndexRange> range = SliceRange(options_.global_sequences, slice);
  if (!range.ok()) return range.status();
  absl::StatusOr<Batch> batch = MakeBatch(range->count, options_.length);
  if (!batch.ok()) return batch.status();
  for (int64_t row = 0; row < range->count; ++row) {
    const Sample sample = sampler_.SampleAt(range->first + row);
    absl::Status status =
        FillSequence(*sources_[sample.dataset], sample.index, options_.window, row, *batch);
    if (!status.ok()) return status;
  }
  return batch;
}

}  // namespace nibble

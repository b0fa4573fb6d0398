#include "worker/trainer/data/sampler.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "worker/trainer/data/blend.h"
#include "worker/trainer/data/permutation.h"
#include "worker/trainer/data/phased_blend.h"

namespace nibble {

int64_t SampleCount(int64_t tokens, int64_t length) {
  return tokens <= length ? 0 : (tokens - 1) / length;
}

namespace {

absl::StatusOr<std::vector<uint64_t>> CheckedSamples(absl::Span<const int64_t> samples) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] < 1 || samples[i] > static_cast<int64_t>(EpochPermutation::kMaxSize)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data set %d: samples is %d, not in [1, %d]", i, samples[i],
                          uint64_t{EpochPermutation::kMaxSize}));
    }
  }
  return std::vector<uint64_t>(samples.begin(), samples.end());
}

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(uint64_t seed, absl::Span<const SampledDataset> datasets) {
  std::vector<int64_t> samples, weights;
  for (const SampledDataset& dataset : datasets) {
    samples.push_back(dataset.samples);
    weights.push_back(dataset.weight);
  }
  absl::StatusOr<std::vector<uint64_t>> checked = CheckedSamples(samples);
  if (!checked.ok()) return checked.status();
  absl::StatusOr<Blend> blend = Blend::Create(weights);
  if (!blend.ok()) return blend.status();
  return Sampler(seed, *std::move(checked), PhasedBlend(*std::move(blend)));
}

absl::StatusOr<Sampler> Sampler::Create(uint64_t seed, absl::Span<const int64_t> samples,
                                        const PhasePlan& plan) {
  absl::StatusOr<std::vector<uint64_t>> checked = CheckedSamples(samples);
  if (!checked.ok()) return checked.status();
  absl::StatusOr<PhasedBlend> blend = PhasedBlend::Create(plan);
  if (!blend.ok()) return blend.status();
  if (blend->datasets() != static_cast<int64_t>(samples.size())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("phases have %d weights each, but there are %d data sets",
                        blend->datasets(), samples.size()));
  }
  return Sampler(seed, *std::move(checked), *std::move(blend));
}

Sample Sampler::SampleAt(int64_t global_index) const {
  const BlendPlace place = blend_.At(static_cast<uint64_t>(global_index));
  const uint64_t samples = samples_[place.dataset];
  const uint64_t epoch = place.ordinal / samples;
  const EpochPermutation order(samples, seed_, static_cast<uint32_t>(place.dataset), epoch);
  return {.dataset = place.dataset,
          .epoch = static_cast<int64_t>(epoch),
          .index = static_cast<int64_t>(order(place.ordinal % samples))};
}

}  // namespace nibble

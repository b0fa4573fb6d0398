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

namespace nibble {

int64_t SampleCount(int64_t tokens, int64_t length) {
  return tokens <= length ? 0 : (tokens - 1) / length;
}

absl::StatusOr<Sampler> Sampler::Create(uint64_t seed, absl::Span<const SampledDataset> datasets) {
  std::vector<uint64_t> samples;
  std::vector<int64_t> weights;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const SampledDataset& dataset = datasets[i];
    if (dataset.samples < 1 || dataset.samples > static_cast<int64_t>(EpochPermutation::kMaxSize)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data set %d: samples is %d, not in [1, %d]", i, dataset.samples,
                          uint64_t{EpochPermutation::kMaxSize}));
    }
    samples.push_back(static_cast<uint64_t>(dataset.samples));
    weights.push_back(dataset.weight);
  }
  absl::StatusOr<Blend> blend = Blend::Create(weights);
  if (!blend.ok()) return blend.status();
  return Sampler(seed, std::move(samples), *std::move(blend));
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

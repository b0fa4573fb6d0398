#include "worker/trainer/data/sampler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/trainer/data/random_choice.h"

namespace nibble {

namespace {

// The data set of index t, if data set i has had[i] of the t indices before it.
//
// With λ = w/period, c = 2·(data sets) − 2 and the deficit λ·(t+1) − had, a data set is
// eligible from a deficit of 1/c on and must be chosen before its deficit exceeds 1 − 1/c: its
// deadline is in (1 − 1/c − deficit)/λ. Multiplied by c·period, all are integers, below
// 2^9 · 2^17 · 2^2 · 2^17 in the comparison of deadlines.
size_t NextTurn(const std::vector<uint64_t>& weights, const std::vector<uint32_t>& had, int64_t t,
                int64_t period) {
  if (weights.size() == 1) return 0;
  const int64_t c = 2 * static_cast<int64_t>(weights.size()) - 2;
  size_t best = weights.size();
  int64_t best_time = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t weight = static_cast<int64_t>(weights[i]);
    const int64_t deficit = c * (weight * (t + 1) - int64_t{had[i]} * period);
    if (deficit < period) continue;
    const int64_t time = (c - 1) * period - deficit;
    if (best == weights.size() || time * static_cast<int64_t>(weights[best]) < best_time * weight) {
      best = i;
      best_time = time;
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<Blend> Blend::Create(absl::Span<const int64_t> weights) {
  const auto count = static_cast<int64_t>(weights.size());
  if (count < 1 || count > kMaxDatasets) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights: %d data sets, not 1 to %d", count, int64_t{kMaxDatasets}));
  }
  int64_t divisor = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weights[%d] is %d, not at least 1", i, weights[i]));
    }
    divisor = std::gcd(divisor, weights[i]);
  }
  std::vector<uint64_t> parts;
  int64_t period = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t part = weights[i] / divisor;
    if (part > kMaxPeriod - period) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weights[%d] is %d: the sum of the weights, divided by %d, exceeds %d", i,
                          weights[i], divisor, int64_t{kMaxPeriod}));
    }
    parts.push_back(static_cast<uint64_t>(part));
    period += part;
  }

  std::vector<Turn> turns;
  turns.reserve(period);
  std::vector<uint32_t> had(parts.size(), 0);
  for (int64_t t = 0; t < period; ++t) {
    const size_t next = NextTurn(parts, had, t, period);
    turns.push_back({static_cast<int32_t>(next), had[next]++});
  }
  return Blend(std::move(parts), std::move(turns));
}

BlendPlace Blend::At(uint64_t index) const {
  const Turn& turn = turns_[index % turns_.size()];
  return {turn.dataset, index / turns_.size() * weights_[turn.dataset] + turn.ordinal};
}

uint64_t Blend::CountBefore(uint64_t indices, int32_t dataset) const {
  const uint64_t whole = indices / turns_.size();
  const auto rest = static_cast<ptrdiff_t>(indices % turns_.size());
  return whole * weights_[dataset] +
         static_cast<uint64_t>(
             std::count_if(turns_.begin(), turns_.begin() + rest,
                           [&](const Turn& turn) { return turn.dataset == dataset; }));
}

namespace {

constexpr int64_t kMaxIndices = int64_t{1} << 62;

absl::Status CheckPhase(size_t number, const BlendPhase& phase, size_t datasets) {
  if (phase.parts < 1 || phase.parts > PhasedBlend::kMaxParts) {
    return absl::InvalidArgumentError(absl::StrFormat("phases[%d]: parts is %d, not in [1, %d]",
                                                      number, phase.parts,
                                                      int64_t{PhasedBlend::kMaxParts}));
  }
  if (phase.weights.size() != datasets) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "phases[%d]: %d weights, not %d as in phases[0]", number, phase.weights.size(), datasets));
  }
  for (size_t d = 0; d < datasets; ++d) {
    if (phase.weights[d] < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "phases[%d]: weights[%d] is %d, not at least 0", number, d, phase.weights[d]));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const PhasePlan& plan) {
  const size_t phases = plan.phases.size();
  if (phases < 1 || phases > static_cast<size_t>(PhasedBlend::kMaxPhases)) {
    return absl::InvalidArgumentError(absl::StrFormat("phases has %d entries, not 1 to %d", phases,
                                                      int64_t{PhasedBlend::kMaxPhases}));
  }
  if (plan.steps < 1 || plan.steps > kMaxIndices) {
    return absl::InvalidArgumentError(absl::StrFormat("steps is %d, not in [1, 2^62]", plan.steps));
  }
  if (plan.sequences < 1 || plan.sequences > kMaxIndices / plan.steps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequences is %d, not in [1, %d]: 2^62 over %d steps", plan.sequences,
                        kMaxIndices / plan.steps, plan.steps));
  }
  const size_t datasets = plan.phases.front().weights.size();
  for (size_t p = 0; p < phases; ++p) {
    NIBBLE_RETURN_IF_ERROR(CheckPhase(p, plan.phases[p], datasets));
  }
  for (size_t d = 0; d < datasets; ++d) {
    if (std::all_of(plan.phases.begin(), plan.phases.end(),
                    [&](const BlendPhase& phase) { return phase.weights[d] == 0; })) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weights[%d] is 0 in every phase, so data set %d is in none", d, d));
    }
  }
  return absl::OkStatus();
}

}  // namespace

PhasedBlend::PhasedBlend(Blend blend) {
  std::vector<int32_t> all(static_cast<size_t>(blend.datasets()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<uint64_t> had(all.size(), 0);
  phases_.push_back({0, std::move(blend), std::move(all), std::move(had)});
}

absl::StatusOr<PhasedBlend> PhasedBlend::Create(const PhasePlan& plan) {
  NIBBLE_RETURN_IF_ERROR(Check(plan));
  const auto all_parts =
      std::accumulate(plan.phases.begin(), plan.phases.end(), int64_t{0},
                      [](int64_t sum, const BlendPhase& phase) { return sum + phase.parts; });
  std::vector<Phase> phases;
  std::vector<uint64_t> had(plan.phases.front().weights.size(), 0);
  int64_t parts_before = 0;
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    std::vector<int32_t> datasets;
    std::vector<int64_t> weights;
    for (size_t d = 0; d < had.size(); ++d) {
      if (plan.phases[p].weights[d] == 0) continue;
      datasets.push_back(static_cast<int32_t>(d));
      weights.push_back(plan.phases[p].weights[d]);
    }
    absl::StatusOr<Blend> blend = Blend::Create(weights);
    if (!blend.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("phases[%d], without weights of 0: %s", p, blend.status().message()));
    }
    // The product may exceed 64 bits.
    const __int128 steps_parts = static_cast<__int128>(plan.steps) * parts_before;
    const auto first_step = static_cast<uint64_t>((steps_parts + all_parts - 1) / all_parts);
    const uint64_t begin = first_step * static_cast<uint64_t>(plan.sequences);
    if (p > 0) {
      const Phase& before = phases.back();
      for (size_t i = 0; i < before.datasets.size(); ++i) {
        had[before.datasets[i]] +=
            before.blend.CountBefore(begin - before.begin, static_cast<int32_t>(i));
      }
    }
    phases.push_back({begin, *std::move(blend), std::move(datasets), had});
    parts_before += plan.phases[p].parts;
  }
  return PhasedBlend(std::move(phases));
}

size_t PhasedBlend::PhaseAt(uint64_t index) const {
  // The last phase that begins at or before the index; this skips empty phases.
  const auto next =
      std::upper_bound(phases_.begin(), phases_.end(), index,
                       [](uint64_t at, const Phase& phase) { return at < phase.begin; });
  return static_cast<size_t>(next - phases_.begin()) - 1;
}

BlendPlace PhasedBlend::At(uint64_t index) const {
  const Phase& phase = phases_[PhaseAt(index)];
  const BlendPlace place = phase.blend.At(index - phase.begin);
  const int32_t dataset = phase.datasets[place.dataset];
  return {dataset, phase.had[dataset] + place.ordinal};
}

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
  NIBBLE_ASSIGN_OR_RETURN(std::vector<uint64_t> checked, CheckedSamples(samples));
  NIBBLE_ASSIGN_OR_RETURN(Blend blend, Blend::Create(weights));
  return Sampler(seed, std::move(checked), PhasedBlend(std::move(blend)));
}

absl::StatusOr<Sampler> Sampler::Create(uint64_t seed, absl::Span<const int64_t> samples,
                                        const PhasePlan& plan) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<uint64_t> checked, CheckedSamples(samples));
  NIBBLE_ASSIGN_OR_RETURN(PhasedBlend blend, PhasedBlend::Create(plan));
  if (blend.datasets() != static_cast<int64_t>(samples.size())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("phases have %d weights each, but there are %d data sets", blend.datasets(),
                        samples.size()));
  }
  return Sampler(seed, std::move(checked), std::move(blend));
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

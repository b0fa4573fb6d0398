#include "worker/trainer/data/phased_blend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/blend.h"

namespace nibble {
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
    return absl::InvalidArgumentError(absl::StrFormat("phases: %d of them, not 1 to %d", phases,
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
    if (absl::Status status = CheckPhase(p, plan.phases[p], datasets); !status.ok()) return status;
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
  if (absl::Status status = Check(plan); !status.ok()) return status;
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
    // Above 64 bits on the way.
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
  // The last that begins at or before the index; of phases without an index, the last.
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

}  // namespace nibble

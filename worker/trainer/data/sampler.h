// The order of the training samples: a blend of data sets, blends that change during the run, and
// the sampler on top of them. Every result is a pure function of the sample's global index, the
// seed and the configuration; there is no state to save except the step.
//
// Ownership: objects own their tables. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SAMPLER_H_
#define NIBBLE_WORKER_TRAINER_DATA_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

struct BlendPlace {
  int32_t dataset = 0;
  uint64_t ordinal = 0;  // number of earlier indices with this data set

  friend bool operator==(const BlendPlace&, const BlendPlace&) = default;
};

// Assigns each global index a data set and the ordinal of the sample within that data set.
//
// Weights are whole parts (70, 20, 10), so that proportions are exact: for every n, data set d has
// n·w[d]/Σw of the first n indices, with an error below one. One period of Σw indices (after
// division by the common divisor) is a table made by Tijdeman's solution of the chairman assignment
// problem (Discrete Mathematics 32, 1980): among the eligible data sets, the one with the earliest
// deadline.
class Blend {
 public:
  static constexpr int64_t kMaxDatasets = 256;
  static constexpr int64_t kMaxPeriod = 100'000;

  // InvalidArgument, naming the weight, its value and its bound, unless there are 1 to kMaxDatasets
  // weights of at least 1 whose sum, after division by their common divisor, is at most kMaxPeriod.
  static absl::StatusOr<Blend> Create(absl::Span<const int64_t> weights);

  BlendPlace At(uint64_t index) const;

  // The number of the first `indices` indices that have `dataset`. O(period).
  uint64_t CountBefore(uint64_t indices, int32_t dataset) const;

  int64_t period() const { return static_cast<int64_t>(turns_.size()); }
  int64_t datasets() const { return static_cast<int64_t>(weights_.size()); }

 private:
  struct Turn {
    int32_t dataset;
    uint32_t ordinal;  // within the period
  };

  Blend(std::vector<uint64_t> weights, std::vector<Turn> turns)
      : weights_(std::move(weights)), turns_(std::move(turns)) {}

  std::vector<uint64_t> weights_;  // without a common divisor
  std::vector<Turn> turns_;        // one period
};

// A phase of a blend that changes during the run.
struct BlendPhase {
  int64_t parts = 1;             // its share of the run: 70, 20, 10
  std::vector<int64_t> weights;  // of each data set, see Blend; 0: not in this phase
};

// The phases of a run of `steps` steps of `sequences` samples each. A step belongs to the phase in
// which it begins: the first step of phase p is ⌈steps · (parts of the phases before p) / (parts of
// all)⌉. In a short run a phase may have no step. Past the last step the last phase continues.
struct PhasePlan {
  std::vector<BlendPhase> phases;
  int64_t steps = 0;
  int64_t sequences = 0;
};

// A blend with phases, each with its own weights of the data sets. The samples of a data set are
// counted through all phases, so that no sample repeats before its epoch is complete.
class PhasedBlend {
 public:
  static constexpr int64_t kMaxPhases = 64;
  static constexpr int64_t kMaxParts = 1'000'000'000;

  // The same blend throughout.
  explicit PhasedBlend(Blend blend);

  // InvalidArgument, naming the phase and the field, its value and its bound, unless there are 1 to
  // kMaxPhases phases of 1 to kMaxParts parts with equally many weights; the positive weights of
  // each phase pass Blend::Create(); every data set is in some phase; and steps and sequences are
  // at least 1 with a product of at most 2^62.
  static absl::StatusOr<PhasedBlend> Create(const PhasePlan& plan);

  BlendPlace At(uint64_t index) const;

  size_t PhaseAt(uint64_t index) const;
  size_t phases() const { return phases_.size(); }
  // The first phase begins at 0; one that begins where the next does is empty.
  uint64_t FirstIndex(size_t phase) const { return phases_[phase].begin; }
  int64_t datasets() const { return static_cast<int64_t>(phases_.front().had.size()); }

 private:
  struct Phase {
    uint64_t begin;                 // index
    Blend blend;                    // of its data sets
    std::vector<int32_t> datasets;  // their numbers
    std::vector<uint64_t> had;      // [all data sets]: samples before this phase
  };

  explicit PhasedBlend(std::vector<Phase> phases) : phases_(std::move(phases)) {}

  std::vector<Phase> phases_;  // by begin
};

// The number of samples in a data set of `tokens` tokens; 0 if it is too short for one.
//
// Sample k is the window of `length` + 1 tokens that begins at token k · length: the last token of
// one is the first of the next, so that every token except the first is a target exactly once.
// Tokens at the end that do not fill a window are not used.
int64_t SampleCount(int64_t tokens, int64_t length);

struct SampledDataset {
  int64_t samples = 0;  // SampleCount(), from 1 to EpochPermutation::kMaxSize
  int64_t weight = 1;   // parts of the blend
};

struct Sample {
  int32_t dataset = 0;
  int64_t epoch = 0;  // of the data set, from 0
  int64_t index = 0;  // in [0, samples of the data set)

  friend bool operator==(const Sample&, const Sample&) = default;
};

// The sample at each global index = step · global_sequences + position in the step's global batch;
// ranks do not matter.
//
// The blend assigns each index to a data set. The indices of a data set are divided into epochs of
// as many indices as it has samples; each epoch has its own permutation, in which every sample
// occurs exactly once. A new phase of the blend does not begin a new epoch.
class Sampler {
 public:
  // InvalidArgument naming the data set, its value and its bound; otherwise as Blend::Create().
  static absl::StatusOr<Sampler> Create(uint64_t seed, absl::Span<const SampledDataset> datasets);

  // With phases; data set i has samples[i] samples. InvalidArgument also if the plan has another
  // number of weights; otherwise as PhasedBlend::Create(). With one phase the result is that of the
  // overload above with its weights, for any number of steps.
  static absl::StatusOr<Sampler> Create(uint64_t seed, absl::Span<const int64_t> samples,
                                        const PhasePlan& plan);

  // `global_index` is at least 0.
  Sample SampleAt(int64_t global_index) const;

  const PhasedBlend& blend() const { return blend_; }

 private:
  Sampler(uint64_t seed, std::vector<uint64_t> samples, PhasedBlend blend)
      : seed_(seed), samples_(std::move(samples)), blend_(std::move(blend)) {}

  uint64_t seed_;
  std::vector<uint64_t> samples_;
  PhasedBlend blend_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_SAMPLER_H_

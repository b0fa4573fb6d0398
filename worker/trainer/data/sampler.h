// Which sample stands where in a run: a pure function of seed and global index and, where the blend
// has phases, of the run's number of steps. There is no state to save but the step, and nothing
// about it depends on ranks.
//
// Global index of a sample = step · global_sequences + its place in the step's global batch. The
// blend gives each index to a data set; a data set's indices are cut into epochs of as many as it
// has samples, and each epoch has an order of its own, in which every sample occurs exactly once.
// Phases of a blend do not begin an epoch anew (see phased_blend.h).
//
// Sample k of a data set is the window of `length` + 1 tokens that begins at token k · length: as
// the last token of one is the first of the next, every token but the very first is a target
// exactly once. Tokens that fill no window at the end of the data set are left out.
//
// Ownership: owns its tables. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SAMPLER_H_
#define NIBBLE_WORKER_TRAINER_DATA_SAMPLER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/phased_blend.h"

namespace nibble {

// Of a data set of `tokens` tokens; 0 when it has too few for one.
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

class Sampler {
 public:
  // InvalidArgument naming the data set, its value and its bound; otherwise as Blend::Create().
  static absl::StatusOr<Sampler> Create(uint64_t seed, absl::Span<const SampledDataset> datasets);

  // Of data sets of `samples` samples each, blended in phases. InvalidArgument also when there are
  // not as many as the plan has weights; otherwise as PhasedBlend::Create(). With one phase the
  // same as the above with its weights, whatever the steps are.
  static absl::StatusOr<Sampler> Create(uint64_t seed, absl::Span<const int64_t> samples,
                                        const PhasePlan& plan);

  // Of a global index from 0 on.
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

// A blend that changes in the course of a run: phases, each a share of the run's steps, each with
// its own weights of the data sets (70 / 20 / 10 % of training, say).
//
// A place is a function of the index, the phases and the number of steps, and of nothing else. A
// data set's samples are counted through all phases: where it is in its own order does not depend
// on which phases it was in, so no sample comes again before all others of its epoch have.
//
// Ownership: owns its tables. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_PHASED_BLEND_H_
#define NIBBLE_WORKER_TRAINER_DATA_PHASED_BLEND_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/blend.h"

namespace nibble {

struct BlendPhase {
  int64_t parts = 1;             // of the run: 70, 20, 10
  std::vector<int64_t> weights;  // of each data set, see Blend; 0: not in this phase
};

// The phases' parts, laid over a run of `steps` steps of `sequences` samples each. A step is in the
// phase in which it begins: phase p has its first with ⌈steps · (parts of the phases before) /
// (parts of all)⌉. In a run of few steps a phase may have none. The last phase goes on where
// training is continued past the last step.
struct PhasePlan {
  std::vector<BlendPhase> phases;
  int64_t steps = 0;
  int64_t sequences = 0;
};

class PhasedBlend {
 public:
  static constexpr int64_t kMaxPhases = 64;
  static constexpr int64_t kMaxParts = 1'000'000'000;

  // One blend all along.
  explicit PhasedBlend(Blend blend);

  // InvalidArgument, naming the phase and the field, its value and its bound, unless there are 1 to
  // kMaxPhases phases of 1 to kMaxParts parts with as many weights each, of which some are positive
  // and as Blend::Create() wants them; every data set is in some phase; and steps and sequences are
  // at least 1 with a product of at most 2^62.
  static absl::StatusOr<PhasedBlend> Create(const PhasePlan& plan);

  BlendPlace At(uint64_t index) const;

  size_t PhaseAt(uint64_t index) const;
  size_t phases() const { return phases_.size(); }
  // Of `phase`; the first begins at 0, and one that begins where the next does has no index.
  uint64_t FirstIndex(size_t phase) const { return phases_[phase].begin; }
  int64_t datasets() const { return static_cast<int64_t>(phases_.front().had.size()); }

 private:
  struct Phase {
    uint64_t begin;                 // index
    Blend blend;                    // of the data sets that are in it
    std::vector<int32_t> datasets;  // their numbers
    std::vector<uint64_t> had;      // [all data sets]: samples before this phase
  };

  explicit PhasedBlend(std::vector<Phase> phases) : phases_(std::move(phases)) {}

  std::vector<Phase> phases_;  // by begin
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_PHASED_BLEND_H_

// Tells whether a loss is a spike: how many standard deviations it lies above the mean of the last
// losses that were none. What to do about it is the caller's policy.
//
// Only losses above the mean are spikes, so a curve that falls raises no alarm, and losses that
// were spikes do not enter the window, so the next one is measured against the same level. Until
// the window is full nothing is judged: a fresh run settles first. A level that stays is no spike:
// after kMostInARow spikes in a row the guard takes them for the new level, forgets the window and
// fills it anew, so that a policy of skipping never stops a run for good.
//
// Deterministic: the verdict is a function of the losses so far, and State is all that is kept of
// them. O(window) a step.
//
// Ownership: a value. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_SPIKE_GUARD_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_SPIKE_GUARD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace nibble {

class SpikeGuard {
 public:
  struct Options {
    double z = 6.0;       // above 0
    int64_t window = 64;  // at least 2
  };

  static constexpr int64_t kMostInARow = 10;
  // A standard deviation counts as at least this share of the mean: on a plateau without noise the
  // last digit would make spikes.
  static constexpr double kLeastDeviation = 1e-3;

  struct Verdict {
    bool spike = false;
    // (loss − mean) / deviation; 0 while the window fills, +infinity of a loss that is NaN or
    // infinite.
    double z = 0;
    // This spike was the last of kMostInARow: from here on the guard learns the new level.
    bool new_level = false;
    friend bool operator==(const Verdict&, const Verdict&) = default;
  };

  // Part of a checkpoint: a guard with the state of another goes on as that one would.
  struct State {
    std::vector<double> losses;  // the window, oldest first
    int64_t in_a_row = 0;        // spikes up to the last loss
    friend bool operator==(const State&, const State&) = default;
  };

  explicit SpikeGuard(const Options& options) : options_(options) {}

  // The next step's loss. One that is NaN or infinite is a spike at any time, and counts for
  // nothing else.
  Verdict Observe(double loss);

  const State& state() const { return state_; }
  // Of a larger window the last losses are taken. InvalidArgument for a loss that is not finite or
  // a negative count.
  absl::Status Restore(State state);

 private:
  bool full() const { return static_cast<int64_t>(state_.losses.size()) >= options_.window; }
  double Score(double loss) const;

  Options options_;
  State state_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_SPIKE_GUARD_H_

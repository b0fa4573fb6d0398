// Guards that watch the losses and gradient norms of a run: early stopping and spike detection.
// Both are deterministic functions of these values, so that all ranks decide alike, and have a
// State for checkpoints, so that a resumed run decides as if it had not stopped.
//
// Ownership: values. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_LOSS_GUARDS_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_LOSS_GUARDS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"

namespace nibble {

// Ends a run whose validation loss no longer improves.
class EarlyStop {
 public:
  struct State {
    double best = std::numeric_limits<double>::infinity();  // loss; infinity: none yet
    int64_t since = 0;                                      // validations since the best
    friend bool operator==(const State&, const State&) = default;
  };

  // Stops after `patience` consecutive validations that do not improve on the best loss by more
  // than `min_delta`; never if `patience` is 0.
  EarlyStop(int64_t patience, double min_delta) : patience_(patience), min_delta_(min_delta) {}

  // NaN is not an improvement.
  void Observe(double loss) {
    if (loss < state_.best - min_delta_) {
      state_ = {.best = loss, .since = 0};
    } else {
      ++state_.since;
    }
  }
  bool stops() const { return patience_ > 0 && state_.since >= patience_; }

  const State& state() const { return state_; }
  void Restore(const State& state) { state_ = state; }

 private:
  int64_t patience_;
  double min_delta_;
  State state_;
};

// Detects spikes of a value, such as the loss, by the number of standard deviations above the mean
// of the last values that were not spikes. The caller decides what to do about a spike.
//
// Only values above the mean can be spikes, so a falling curve raises no alarm. Spikes do not enter
// the window, so the next value is compared to the same level. Nothing is a spike until the window
// is full. After kMostInARow consecutive spikes the guard accepts the new level: it empties the
// window and fills it again, so that a policy of skipping never blocks a run forever.
//
// Observe() takes O(window).
class SpikeGuard {
 public:
  struct Options {
    double z = 6.0;       // above 0
    int64_t window = 64;  // at least 2
  };

  static constexpr int64_t kMostInARow = 10;
  // The least standard deviation, relative to the mean: without it, rounding would make spikes on a
  // plateau without noise.
  static constexpr double kLeastDeviation = 1e-3;

  struct Verdict {
    bool spike = false;
    // (value − mean) / deviation; 0 while the window fills, +infinity for a value that is NaN or
    // infinite.
    double z = 0;
    // This spike was number kMostInARow: the guard now learns the new level.
    bool new_level = false;
    friend bool operator==(const Verdict&, const Verdict&) = default;
  };

  // Part of a checkpoint: a guard with the state of another behaves like that one.
  struct State {
    std::vector<double> values;  // the window, oldest first
    int64_t in_a_row = 0;        // consecutive spikes up to the last value
    friend bool operator==(const State&, const State&) = default;
  };

  explicit SpikeGuard(const Options& options) : options_(options) {}

  // The next step's value is a spike above it; infinity while nothing is.
  double Bound() const;
  // The next step's value. NaN or infinity is always a spike and does not count otherwise.
  Verdict Observe(double value);

  const State& state() const { return state_; }
  // Keeps the last values of a larger window. InvalidArgument for a value that is not finite or a
  // negative count.
  absl::Status Restore(State state);

 private:
  bool full() const { return static_cast<int64_t>(state_.values.size()) >= options_.window; }
  struct Level {
    double mean, deviation;
  };
  Level level() const;

  Options options_;
  State state_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_LOSS_GUARDS_H_

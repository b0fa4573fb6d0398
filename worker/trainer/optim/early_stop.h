// Ends a run whose validation loss no longer improves: a function of the losses alone, so that
// every rank, and a run that is continued from a checkpoint, ends at the same step.
//
// Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_EARLY_STOP_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_EARLY_STOP_H_

#include <cstdint>
#include <limits>

namespace nibble {

class EarlyStop {
 public:
  struct State {
    double best = std::numeric_limits<double>::infinity();  // loss; infinite: none yet
    int64_t since = 0;                                      // validations since it was the best
    friend bool operator==(const State&, const State&) = default;
  };

  // Stops after `patience` validations in a row that are not below the best by more than
  // `min_delta`; never where `patience` is 0.
  EarlyStop(int64_t patience, double min_delta) : patience_(patience), min_delta_(min_delta) {}

  // A loss that is NaN is no improvement.
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

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_EARLY_STOP_H_

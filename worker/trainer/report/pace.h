// How fast a run goes, from the times at which its steps end: over the last steps, so that it
// follows a change of pace, and a single slow step does not rule it.
//
// Ownership: a value. Thread-safety: none. No clock: times are given, in seconds.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_PACE_H_
#define NIBBLE_WORKER_TRAINER_REPORT_PACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>

namespace nibble {

class Pace {
 public:
  static constexpr size_t kSteps = 32;

  // The run begins (again): what happened before does not count.
  void Start(double now);
  // A step of so many tokens has ended. Times never decrease.
  void Step(double now, int64_t tokens);
  // Time that belongs to no step has passed since the last call, such as a validation.
  void Pause(double now);

  // Both 0 until a step has taken time.
  double tokens_per_second() const;
  double seconds_per_step() const;

 private:
  struct Done {
    double seconds;
    int64_t tokens;
  };
  double seconds() const;

  double last_ = 0;
  std::deque<Done> steps_;  // the last kSteps
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_PACE_H_

#include "worker/trainer/report/pace.h"

namespace nibble {

void Pace::Start(double now) {
  last_ = now;
  steps_.clear();
}

void Pace::Step(double now, int64_t tokens) {
  steps_.push_back({now - last_, tokens});
  if (steps_.size() > kSteps) steps_.pop_front();
  last_ = now;
}

void Pace::Pause(double now) { last_ = now; }

double Pace::seconds() const {
  double sum = 0;
  for (const Done& step : steps_) sum += step.seconds;
  return sum;
}

double Pace::tokens_per_second() const {
  const double time = seconds();
  if (time <= 0) return 0;
  double tokens = 0;
  for (const Done& step : steps_) tokens += static_cast<double>(step.tokens);
  return tokens / time;
}

double Pace::seconds_per_step() const {
  return steps_.empty() ? 0 : seconds() / static_cast<double>(steps_.size());
}

}  // namespace nibble

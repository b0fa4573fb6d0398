#include "job/schedule.h"

#include <cmath>
#include <numbers>

namespace nibble {
namespace {

// From 1 (not reached) at p = 0 down to 0 at p = 1.
double Shape(DecayShape shape, double p) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1 - p;
    case DecayShape::kCosine:
      return (1 + std::cos(std::numbers::pi * p)) / 2;
    case DecayShape::kMinusSqrt:
      break;
  }
  return 1 - std::sqrt(p);
}

}  // namespace

int64_t DecayFirstStep(const OptimizerSpec& optimizer, int64_t steps) {
  switch (optimizer.schedule) {
    case LrSchedule::kWsd:
      return steps - std::llround(optimizer.decay_fraction * static_cast<double>(steps));
    case LrSchedule::kCosine:
      return optimizer.warmup_steps;
    case LrSchedule::kConstant:
      break;
  }
  return steps;
}

double LearningRate(const OptimizerSpec& optimizer, int64_t steps, int64_t step) {
  if (step < optimizer.warmup_steps) {
    // Divide first: the quotient is exactly 1 at the last step of the warm-up.
    return optimizer.lr *
           (static_cast<double>(step + 1) / static_cast<double>(optimizer.warmup_steps));
  }
  const int64_t decay = DecayFirstStep(optimizer, steps);
  if (step < decay) return optimizer.lr;
  const double p = static_cast<double>(step - decay + 1) / static_cast<double>(steps - decay);
  const DecayShape shape =
      optimizer.schedule == LrSchedule::kCosine ? DecayShape::kCosine : optimizer.decay_shape;
  return optimizer.final_lr + (optimizer.lr - optimizer.final_lr) * Shape(shape, p);
}

}  // namespace nibble

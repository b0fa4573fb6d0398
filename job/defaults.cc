#include "job/defaults.h"

#include <algorithm>
#include <cstdint>

#include "job/job_fields.h"
#include "job/schedule.h"

namespace nibble {
namespace {

// A tenth of the run, between 1 and `most` steps.
int64_t Tenth(int64_t steps, int64_t most) { return std::clamp<int64_t>(steps / 10, 1, most); }

void FillIntervals(const Problems& text, int64_t steps, JobSpec& spec) {
  const auto fill = [&](const char* path, int64_t& value) {
    if (!text.IsWritten(path)) value = Tenth(steps, value);
  };
  fill("metrics.log_every", spec.metrics.log_every);
  fill("metrics.precision_every", spec.metrics.precision_every);
  fill("checkpoints.every", spec.checkpoints.every);
  fill("training.validate_every", spec.training.validate_every);
}

// The warm-up and the decay share the run; an unset one takes what the other leaves.
void FillSchedule(const Problems& text, int64_t steps, OptimizerSpec& optimizer) {
  if (!text.IsWritten("optimizer.final_lr") && optimizer.lr > 0) {
    optimizer.final_lr = std::min(optimizer.final_lr, optimizer.lr);
  }
  const bool warmup_written = text.IsWritten("optimizer.warmup_steps");
  if (!text.IsWritten("optimizer.decay_fraction") && warmup_written &&
      optimizer.warmup_steps >= 0 && optimizer.warmup_steps <= steps) {
    const int64_t left = steps - optimizer.warmup_steps;
    optimizer.decay_fraction =
        std::min(optimizer.decay_fraction, static_cast<double>(left) / static_cast<double>(steps));
  }
  if (warmup_written) return;
  const bool decays = optimizer.schedule == LrSchedule::kWsd;
  const bool share = optimizer.decay_fraction >= 0 && optimizer.decay_fraction <= 1;
  const int64_t room = decays && share ? DecayFirstStep(optimizer, steps) : steps;
  optimizer.warmup_steps = std::min({optimizer.warmup_steps, steps / 10, room});
}

void FillBatch(const Problems& text, JobSpec& spec) {
  const int64_t ranks = spec.resources.ranks;
  const int64_t micro = std::max<int64_t>(spec.training.micro_batch, 1);
  if (text.IsWritten("training.batch") || !kBatchRange.Contains(ranks) ||
      !kBatchRange.Contains(micro)) {
    return;
  }
  const int64_t share = ranks * micro;
  if (!kBatchRange.Contains(share)) return;  // above the largest batch
  spec.training.batch = (spec.training.batch + share - 1) / share * share;
}

}  // namespace

void FillDefaults(const Problems& text, JobSpec& spec) {
  if (const int64_t steps = spec.training.steps; steps >= 1) {
    FillIntervals(text, steps, spec);
    FillSchedule(text, steps, spec.optimizer);
  }
  FillBatch(text, spec);
  if (!text.IsWritten("restarts.max_backoff")) {
    spec.restarts.max_backoff = std::max(spec.restarts.max_backoff, spec.restarts.backoff);
  }
  if (!text.IsWritten("training.validate_every") && spec.data.validation.empty() &&
      spec.data.validation_fraction == 0) {
    spec.training.validate_every = 0;
  }
  if (!text.IsWritten("data.sequence") && spec.model.positions == Positions::kLearned &&
      spec.model.max_positions >= 1) {
    spec.data.sequence = std::min(spec.data.sequence, spec.model.max_positions);
  }
  if (!text.IsWritten("recipe") && spec.training.precision == JobPrecision::kFp32) {
    spec.recipe.preset = "bf16";
  }
}

}  // namespace nibble

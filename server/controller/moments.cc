#include "server/controller/moments.h"

#include <algorithm>

#include "server/state/decide_gang.h"
#include "server/state/job_machine.h"

namespace nibble {

Moments::OfJob Moments::Note(const State& state, const v1::JobRecord& job, int64_t now_ms) {
  std::lock_guard lock(mutex_);
  if (IsFinished(job.state())) {
    known_.erase(job.id());
    return {};
  }
  if (!job.has_attempt()) {
    const int64_t backoff_ms = BackoffOf(job);
    if (backoff_ms == 0) return {};
    Known& known = known_[job.id()];
    if (known.ended < job.last_attempt()) {
      known.ended = job.last_attempt();
      known.not_before_ms = now_ms + backoff_ms;
    }
    return {.not_before_ms = known.not_before_ms};
  }
  const v1::Attempt& attempt = job.attempt();
  const v1::Checkpoint* const newest = state.NewestGood(job.id());
  const int64_t step = newest == nullptr ? -1 : newest->ref().step();
  Known& known = known_[job.id()];
  if (attempt.number() > known.attempt) {
    known.attempt = attempt.number();
    known.launched_ms = known.checkpoint_ms = now_ms;
    known.checkpoint_step = step;
    known.grace_ms = known.stop_by_ms = 0;
  }
  if (attempt.number() == known.attempt) {
    if (step > known.checkpoint_step) {
      known.checkpoint_step = step;
      known.checkpoint_ms = now_ms;
    }
    const int64_t grace_ms = StopGraceOf(attempt);
    if (grace_ms > 0 && (known.grace_ms == 0 || grace_ms < known.grace_ms)) {
      const int64_t stop_by_ms = now_ms + grace_ms;
      known.stop_by_ms = known.grace_ms == 0 ? stop_by_ms : std::min(known.stop_by_ms, stop_by_ms);
      known.grace_ms = grace_ms;
    }
  }
  return {.stop_by_ms = attempt.stopping() ? known.stop_by_ms : 0,
          .launched_ms = known.launched_ms,
          .checkpoint_ms = known.checkpoint_ms};
}

void Moments::Forget(const std::string& job) {
  std::lock_guard lock(mutex_);
  known_.erase(job);
}

}  // namespace nibble

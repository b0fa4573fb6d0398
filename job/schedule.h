// The learning rate of every step, as a pure function.
//
// Steps count from 0. With w = warmup_steps, of the `steps` of the run:
//   warm-up   step s < w:   lr · (s + 1) / w, so that the first step learns and step w − 1 has lr
//   stable    lr
//   decay     the last d steps: final_lr + (lr − final_lr) · shape(p), p = i / d for i = 1 … d, so
//             that the first step of the decay is the first below lr and the last step of the run
//             has final_lr. shape: linear 1 − p; cosine (1 + cos πp) / 2; minus-sqrt 1 − √p
// wsd: d = decay_fraction · steps, rounded to the nearest. cosine: d = steps − w, shape cosine.
// constant: d = 0.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_SCHEDULE_H_
#define NIBBLE_JOB_SCHEDULE_H_

#include <cstdint>

#include "job/job_spec.h"

namespace nibble {

// `step` in [0, steps); `optimizer` of a valid spec. Positive if lr and final_lr are.
double LearningRate(const OptimizerSpec& optimizer, int64_t steps, int64_t step);

// The first step of the decay; `steps` if there is none.
int64_t DecayFirstStep(const OptimizerSpec& optimizer, int64_t steps);

}  // namespace nibble

#endif  // NIBBLE_JOB_SCHEDULE_H_

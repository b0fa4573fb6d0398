// From what a step reports to the events that are written of it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_EVENTS_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_EVENTS_H_

#include <optional>
#include <vector>

#include "job/job_spec.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/report/events.h"

namespace nibble {

inline constexpr char kTrainerVersion[] = "0.1.0";

StartEvent StartOf(const JobSpec& spec, const Outline& outline, int64_t first_step, int threads);
// `tokens_per_second`: over the steps since the last event.
StepEvent StepOf(const StepReport& report, double tokens_per_second);
// Of every operand that was sampled.
std::vector<PrecisionEvent> PrecisionOf(const StepReport& report, const Outline& outline,
                                        const Timeline& timeline);
// Where a guard saw something.
std::optional<GuardEvent> GuardOf(const StepReport& report, const GuardSpec& guards);
RevisionEvent RevisionOf(const Timeline& timeline, const Revision& revision,
                         const Outline& outline);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_EVENTS_H_

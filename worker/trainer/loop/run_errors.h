// The exit codes of a run's errors (worker/link/trainer_exit.h), by where they come from. Each
// function returns an OK status, and an error of another kind, as it is.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_ERRORS_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_ERRORS_H_

#include "absl/status/status.h"
#include "job/job_spec.h"

namespace nibble {

// For errors of a model or an optimizer: it would reject the same configuration again.
absl::Status OfSpec(absl::Status status);

// For errors of the data: missing or unusable data will not improve in another attempt, but a full
// disk or a failed read may.
absl::Status OfData(absl::Status status);

// For errors of the checkpoint to resume from: DataLoss and NotFound concern the stored bytes;
// FailedPrecondition means that the spec differs from the checkpoint's.
absl::Status OfCheckpoint(absl::Status status);

// ResourceExhausted is a full disk.
absl::Status OfDisk(absl::Status status);

// Names the spec's memory bound in a ResourceExhausted status that it caused.
absl::Status NameBound(const JobSpec& spec, const absl::Status& status);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_ERRORS_H_

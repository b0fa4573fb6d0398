// Training that begins from weights made elsewhere: they become the checkpoint of step 0 of a job.
//
// Ownership: none kept. Thread-safety: one call at a time per store.
#ifndef NIBBLE_WORKER_WEIGHTS_INITIAL_CHECKPOINT_H_
#define NIBBLE_WORKER_WEIGHTS_INITIAL_CHECKPOINT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// The source's weights, moments of zero. FailedPrecondition where the job's model is not the
// source's, naming the first field that differs, or where the store has checkpoints already.
absl::Status WriteInitialCheckpoint(CheckpointStore& store, const JobSpec& spec,
                                    WeightSource& source, int64_t time_unix_nanos);

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_INITIAL_CHECKPOINT_H_

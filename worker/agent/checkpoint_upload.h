// Copies of whole checkpoints in object storage, as directories of jobs:
//
//   PREFIX/step-STEP-attempt-ATTEMPT/checkpoints/step-…/   the checkpoint
//   (docs/formats/checkpoint-store.md)
//                                    order                 of the job, as beside its store here
//                                    ordered-by-STEP-ATTEMPT
//   PREFIX/nibble-copies.json                              the complete ones (common/s3/copies.h)
//
// Downloaded to DATA/jobs/JOB of a worker, or to any other directory, such a copy is what this
// worker had: an orphan that a coordinator can adopt, and a run that nibble-trainer resumes.
//
// Thread-safety: functions of the disk and the store; one call per directory.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_UPLOAD_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_UPLOAD_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_registry.h"

namespace nibble {

// Uploads the checkpoint, of which every shard is here, to `task.destination()`, where the newest
// `task.keep()` copies stay. The store is that of the environment (s3::OptionsFromEnvironment).
// Returns what was done, for people. Cancelled once `cancelled` is true.
//
// `job_directory`: of the job, absolute. The files are linked there first, so that the checkpoint
// may be deleted meanwhile.
absl::StatusOr<std::string> UploadCheckpoint(const CheckpointRegistry& registry,
                                             const std::string& job_directory,
                                             const v1::DesiredTask& task,
                                             std::function<bool()> cancelled);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_UPLOAD_H_

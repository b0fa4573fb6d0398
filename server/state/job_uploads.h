// The record of a job's copies in object storage: which are there, which uploads have failed since
// the newest, and when the next try is due. It is part of the job, so that it outlives the
// checkpoints, which retention deletes, and the coordinator's process.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_JOB_UPLOADS_H_
#define NIBBLE_SERVER_STATE_JOB_UPLOADS_H_

#include <cstdint>

#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

inline constexpr int64_t kFirstUploadPauseMs = 60'000;
inline constexpr int64_t kMostUploadPauseMs = 16 * kFirstUploadPauseMs;

// The pause after this many failures in a row: kFirstUploadPauseMs after the first, then doubled
// with each, up to kMostUploadPauseMs. 0 without failures.
int64_t UploadPauseMs(int32_t failures);

// The rest of the pause at `now_unix_ms`; 0: the next try is due. A wall clock that was set back
// ends the pause, so that it never grows.
int64_t UploadWaitMs(const v1::JobUploads& uploads, int64_t now_unix_ms);

// Records a task of kind UPLOAD that was requested or has ended. A request for another place begins
// a new record: what is there and what fails there are unknown.
void RecordUpload(const v1::CheckpointRef& ref, const v1::CheckpointTask& task,
                  v1::JobUploads& uploads);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_JOB_UPLOADS_H_

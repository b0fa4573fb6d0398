// A job's copies in object storage as text: what is there, and why it is not newer.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_UPLOAD_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_UPLOAD_TEXT_H_

#include <cstdint>
#include <string>

#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// Lines without a newline at the end, such as
//   the newest copy is of step 300, uploaded 2m00s ago; 2 copies at s3://runs/lab/train-7
//   3 uploads have failed since, the last one, of step 350, 10s ago: PUT s3://runs/…: 403 …
//   the next try is due in 3m50s
std::string UploadsText(const v1::JobUploads& uploads, int64_t now_unix_ms);

// "uploaded", "under way", "failed", or "-" for a checkpoint that is not there and was not tried
// last.
std::string UploadWord(const v1::JobUploads& uploads, const v1::CheckpointRef& ref);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_UPLOAD_TEXT_H_

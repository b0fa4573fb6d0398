#include "server/state/job_uploads.h"

#include <algorithm>

#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {

int64_t UploadPauseMs(int32_t failures) {
  if (failures <= 0) return 0;
  int64_t pause = kFirstUploadPauseMs;
  for (int32_t i = 1; i < failures && pause < kMostUploadPauseMs; ++i) pause *= 2;
  return std::min(pause, kMostUploadPauseMs);
}

int64_t UploadWaitMs(const v1::JobUploads& uploads, int64_t now_unix_ms) {
  const int64_t passed = now_unix_ms - uploads.failed_unix_ms();
  if (passed < 0) return 0;
  return std::max<int64_t>(UploadPauseMs(uploads.failures()) - passed, 0);
}

void RecordUpload(const v1::CheckpointRef& ref, const v1::CheckpointTask& task,
                  v1::JobUploads& uploads) {
  if (uploads.place() != task.destination()) {
    uploads.Clear();
    uploads.set_place(task.destination());
  }
  if (task.state() == v1::CHECKPOINT_TASK_STATE_REQUESTED) {
    *uploads.mutable_open() = ref;
    return;
  }
  uploads.clear_open();
  if (task.state() == v1::CHECKPOINT_TASK_STATE_FAILED) {
    uploads.set_failures(uploads.failures() + 1);
    *uploads.mutable_failed() = ref;
    uploads.set_failed_unix_ms(task.ended_unix_ms());
    uploads.set_error(Clip(task.detail(), apply::kMaxClause));
    return;
  }
  // As the worker does in the store (common/s3/copies.h).
  auto& copies = *uploads.mutable_copies();
  copies.erase(std::remove_if(copies.begin(), copies.end(),
                              [key = CheckpointKey(ref)](const v1::CheckpointRef& copy) {
                                return CheckpointKey(copy) == key;
                              }),
               copies.end());
  *copies.Add() = ref;
  const int keep = std::max(task.keep(), 1);
  if (copies.size() > keep) copies.DeleteSubrange(0, copies.size() - keep);
  uploads.set_uploaded_unix_ms(task.ended_unix_ms());
  uploads.set_failures(0);
  uploads.clear_failed();
  uploads.clear_failed_unix_ms();
  uploads.clear_error();
}

}  // namespace nibble

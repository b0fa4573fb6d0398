// Copies of checkpoints in object storage: of each job the newest good checkpoint, as soon as the
// upload before it has ended. Checkpoints that come faster than uploads are passed over; the last
// one of a job is uploaded in any case.
//
// A failed upload is tried again, with the checkpoint that is the newest then, once kRetryMs have
// passed. Nothing waits for an upload but the deletion of its checkpoint.
//
// Ownership: borrows the context. Thread-safety: all methods, but calls of Tick must come one after
// the other. FindUpload is a pure function.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_UPLOADS_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_UPLOADS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "server/controller/controller_context.h"
#include "server/state/state.h"

namespace nibble {

enum class UploadNeed : char {
  kNone,      // the newest good checkpoint is there, or there is none
  kUnderWay,  // an upload of the job was requested and has not ended
  kWanted,    // `ref` is to be uploaded
  kFailed,    // as kWanted, and the job's upload that ended last has failed
};
struct Upload {
  UploadNeed need = UploadNeed::kNone;
  v1::CheckpointRef ref;
};
Upload FindUpload(const State& state, const std::string& job);

class CheckpointUploads {
 public:
  static constexpr int64_t kRetryMs = 60'000;

  // Looks at every job first.
  explicit CheckpointUploads(const ControllerContext& context);

  // Jobs whose checkpoints have changed.
  void NoteChanges(const std::set<std::string>& jobs);
  // Requests the uploads that are due. Nothing without ControllerOptions::object_store.
  void Tick();

 private:
  void Look(const std::string& job, int64_t now_ms);

  const ControllerContext& context_;
  std::map<std::string, int64_t> retry_ms_;  // jobs with a failed upload; used by Tick alone

  Mutex mutex_;
  std::set<std::string> changed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_UPLOADS_H_

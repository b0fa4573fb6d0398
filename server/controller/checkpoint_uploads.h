// Copies of checkpoints in object storage: of each job the newest good checkpoint, as soon as the
// upload before it has ended. Checkpoints that come faster than uploads are passed over; the last
// one of a job is uploaded in any case.
//
// Failures are remembered with the job (server/state/job_uploads.h), not with the checkpoint. After
// a failure the next try waits for a pause that grows with every failure in a row, and takes the
// checkpoint that is the newest then. A restart of the coordinator forgets neither.
//
// Retention keeps a checkpoint while it is uploaded. One that waits for its upload is not kept for
// it: what is uploaded next is the newest good checkpoint, which retention never deletes. So an
// object store that is away costs the workers no disk.
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
#include "server/controller/checkpoint_keeper.h"
#include "server/controller/controller_context.h"
#include "server/state/state.h"

namespace nibble {

enum class UploadNeed : char {
  kNone,      // the newest good checkpoint is the newest copy, or there is none
  kUnderWay,  // an upload of the job was requested and has not ended
  kLost,      // as kUnderWay, but no present worker has some shard: it is to end
  kAbsent,    // `ref` is to be uploaded, but no present worker has some shard
  kWanted,    // `ref` is to be uploaded after `wait_ms`
};
struct Upload {
  UploadNeed need = UploadNeed::kNone;
  v1::CheckpointRef ref;
  int32_t failures = 0;  // in a row
  int64_t wait_ms = 0;   // the rest of the pause after a failure
};
// `place`: s3://BUCKET/PREFIX of the job. Copies and failures at another place do not count.
Upload FindUpload(const State& state, const std::string& job, const std::string& place,
                  int64_t now_unix_ms);

class CheckpointUploads {
 public:
  // Looks at every job first.
  explicit CheckpointUploads(const ControllerContext& context);

  void NoteChanges(const CheckpointKeeper::Changes& changes);
  // Requests the uploads that are due. Nothing without ControllerOptions::object_store.
  void Tick();

 private:
  void Look(const std::string& job, int64_t now_ms);

  const ControllerContext& context_;
  // Used by Tick alone.
  std::set<std::string> failing_;            // jobs whose last upload has failed
  std::map<std::string, int64_t> due_ms_;    // end of the pause after a failure, steady clock
  std::set<std::string> depend_on_workers_;  // jobs whose need may change with a worker's presence

  Mutex mutex_;
  std::set<std::string> changed_ ABSL_GUARDED_BY(mutex_);
  bool workers_changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_UPLOADS_H_

// The care for stored checkpoints with the passing of time: retention, copies on other workers,
// requested tasks, and giving up surplus copies. checkpoint_care.h decides; the keeper collects
// which jobs have changed, works them off with each tick, and keeps the resulting work of each
// worker for its desired state.
//
// Thread-safety: all methods, but calls of Tick must come one after the other.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_KEEPER_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_KEEPER_H_

#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/checkpoint_care.h"
#include "server/controller/checkpoint_care_rounds.h"
#include "server/controller/controller_context.h"
#include "server/controller/worker_session.h"

namespace nibble {

class CheckpointKeeper {
 public:
  // What a durable update has changed.
  struct Changes {
    std::set<std::string> checkpoints_of;  // jobs with a changed checkpoint
    std::set<std::string> jobs;            // jobs that changed, or whose checkpoints or shards did
    bool workers = false;
  };

  // Retention begins with all unfinished jobs.
  CheckpointKeeper(const ControllerContext& context, WorkerSessions& sessions);

  void NoteChanges(const Changes& changes);
  void Tick();
  // Adds the worker's copies to make and tasks to run.
  void AddWork(const std::string& worker, v1::ConnectResponse& desired) const;

 private:
  void Trim();  // deletes the checkpoints that specs do not keep
  void GiveUpSurplus(const std::string& job);

  const ControllerContext& context_;
  WorkerSessions& sessions_;
  CheckpointCareRounds rounds_;  // used by Tick alone

  mutable Mutex mutex_;
  std::map<std::string, CheckpointWork> work_ ABSL_GUARDED_BY(mutex_);  // by worker
  std::set<std::string> to_trim_ ABSL_GUARDED_BY(mutex_);
  // Jobs whose retention waits for absent workers.
  std::set<std::string> trim_later_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> to_care_for_ ABSL_GUARDED_BY(mutex_);
  bool workers_changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_KEEPER_H_

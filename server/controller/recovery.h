// Recovery of what workers have and the store does not know: because the store was restored from a
// backup, because it is an older copy of itself, or because the data belongs to another store. See
// docs/decisions/0008-whose-store.md.
//
// Reports show what a worker has; decide_orphans.cc in server/state decides what is adopted. After
// a new epoch has begun, and while adopted ranks are still running, launches are held back. A job
// of another store with an id of this one holds nothing back: only its workers are left out.
//
// Thread-safety: all methods. They run no callback; `state` arguments may be read under any lock.
#ifndef NIBBLE_SERVER_CONTROLLER_RECOVERY_H_
#define NIBBLE_SERVER_CONTROLLER_RECOVERY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "proto/nibble/v1/common.pb.h"
#include "proto/nibble/v1/update.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/controller_context.h"
#include "server/controller/worker_session.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

class Recovery {
 public:
  explicit Recovery(const ControllerContext& context);

  // Notes the beginning of an epoch in a durable update. Returns the store's identity from then on,
  // or unset if no epoch begins.
  std::optional<v1::StoreIdentity> NoteEpoch(const v1::Update& update);

  // Begins a new epoch if the report shows that the store is not the only one of its history, or
  // records that this coordinator was replaced (DecideStoreSeen); refuses what the store has not
  // issued. To be called first with every report. FailedPrecondition: it was replaced.
  absl::Status CheckStore(WorkerSession& session, const v1::ConnectRequest& report);
  // Takes the worker's orphans from a report of all its shards: adopts data of known jobs, and
  // closes removal orders that were carried out. Those that it may not claim are left out.
  void TakeOrphans(WorkerSession& session, const v1::ConnectRequest& report);
  // Adds the orders about orphans to a worker's desired state.
  void AddOrders(const State& state, const std::string& worker, v1::ConnectResponse& desired) const;
  // Why no attempt of the job may start yet although slots are free; empty: it may.
  std::string WhyNotLaunched(const State& state, const v1::JobRecord& job) const;
  // Jobs that wait for slots and may not be launched yet, with the reason.
  std::map<std::string, std::string> HeldBack(const State& state) const;
  // Workers on which no attempt of the job may run, with the reason: they have another store's job
  // with this id, which uses the same directory.
  std::map<std::string, std::string> TakenFor(const State& state, const v1::JobRecord& job) const;
  // Of all unfinished jobs, by job; those without such workers are left out.
  std::map<std::string, std::map<std::string, std::string>> Taken(const State& state) const;

 private:
  // Whether ranks of the job outside its living attempt may still take a checkpoint: not if the
  // store has ended their attempt, nor if some ranks of their gang are gone.
  bool MayCommit(const v1::JobRecord& job, const std::string& worker, int64_t attempt,
                 Evidence evidence) const;

  const ControllerContext& context_;
  const int64_t opened_ms_;  // when this process began, SteadyMs
  // When the present epoch began, SteadyMs; 0: before this process.
  std::atomic<int64_t> restored_ms_ = 0;
  Mutex mutex_;
  std::set<std::string> began_epoch_ ABSL_GUARDED_BY(mutex_);  // workers whose report did
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_RECOVERY_H_

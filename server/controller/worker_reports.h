// Reports of workers and their answers, the desired states (proto/nibble/v1/worker_link.proto), and
// the workers' leases.
//
// A report is the worker's whole state; its parts become changes of the ledger, one after the
// other. It never waits for the disk: `done` is called once everything that it changed is durable.
//
// Thread-safety: all methods; reports of one session must come one after the other.
#ifndef NIBBLE_SERVER_CONTROLLER_WORKER_REPORTS_H_
#define NIBBLE_SERVER_CONTROLLER_WORKER_REPORTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/checkpoint_keeper.h"
#include "server/controller/controller_context.h"
#include "server/controller/recovery.h"
#include "server/controller/shard_reports.h"
#include "server/controller/watch_feed.h"
#include "server/controller/watchdog.h"
#include "server/controller/worker_session.h"

namespace nibble {

class WorkerReports {
 public:
  WorkerReports(const ControllerContext& context, WorkerSessions& sessions, Recovery& recovery,
                const CheckpointKeeper& keeper, WatchFeed& watches)
      : context_(context),
        sessions_(sessions),
        recovery_(recovery),
        keeper_(keeper),
        watches_(watches),
        watchdog_(context),
        shards_(context, sessions) {}

  // Takes a report; done(OK) when its consequences are durable. With an error, the stream must end
  // with it.
  void Take(const std::shared_ptr<WorkerSession>& session, const v1::ConnectRequest& report,
            std::function<void(absl::Status)> done);
  // The complete desired state, for a session that has reported.
  v1::ConnectResponse Desired(const std::shared_ptr<WorkerSession>& session);
  // Workers whose leases have expired are lost.
  void EndLeases(int64_t now_ms);

 private:
  absl::Status Check(const v1::ConnectRequest& report) const;
  // Registers the worker. If that is refused, calls `done` and returns false.
  bool Register(const v1::WorkerIdentity& identity, const std::function<void(absl::Status)>& done);
  // Handles only the report's revisions of the recipe.
  void TakeRevisions(const v1::WorkerIdentity& identity, const v1::GangReport& gang);
  void TakeGang(const v1::WorkerIdentity& identity, const v1::GangReport& gang);
  void TakeTask(WorkerSession& session, const v1::TaskReport& task);
  // The gangs of the report that the worker may report; the others are refused.
  std::vector<const v1::GangReport*> Claimed(WorkerSession& session,
                                             const v1::ConnectRequest& report) const;

  const ControllerContext& context_;
  WorkerSessions& sessions_;
  Recovery& recovery_;
  const CheckpointKeeper& keeper_;
  WatchFeed& watches_;
  Watchdog watchdog_;
  ShardReports shards_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WORKER_REPORTS_H_

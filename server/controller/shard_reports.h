// Handles workers' reports about shards of checkpoints, and the orders to drop copies that follow.
//
// A worker learns of an order with its desired state, and acknowledges that state's number with a
// later report. Until then its reports about the copy are stale: they do not make it a holder
// again.
//
// Thread-safety: all methods; calls for one session must come one after the other.
#ifndef NIBBLE_SERVER_CONTROLLER_SHARD_REPORTS_H_
#define NIBBLE_SERVER_CONTROLLER_SHARD_REPORTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/controller_context.h"
#include "server/controller/worker_session.h"

namespace nibble {

class ShardReports {
 public:
  ShardReports(const ControllerContext& context, WorkerSessions& sessions)
      : context_(context), sessions_(sessions) {}

  // Takes the damaged copies that readers on the worker have found. Their holders are notified when
  // such a copy was given up, because they have to drop it.
  void TakeDamage(WorkerSession& session, const v1::ConnectRequest& report);
  // Takes the shards that the worker stores.
  void TakeShards(WorkerSession& session, const v1::ConnectRequest& report);

  // Adds the orders to drop copies, and to restore some from the trash, to the session's desired
  // state with the snapshot's number. `shown`: the durable state.
  void AddDropOrders(const State& shown, WorkerSession& session,
                     const WorkerSession::Snapshot& snapshot, v1::ConnectResponse& desired);

 private:
  // Takes what the worker has of checkpoints that are not in the catalogue, and adopts what was to
  // be restored and is stored again.
  void TakeLoose(WorkerSession& session, const v1::ConnectRequest& report);
  // Shards of checkpoints that are not in the catalogue.
  void AddDeleted(const State& shown, WorkerSession& session,
                  const WorkerSession::Snapshot& snapshot, v1::ConnectResponse& desired);
  // Copies beyond the wanted number, and damaged ones that were given up.
  void AddSurplus(const State& shown, WorkerSession& session,
                  const WorkerSession::Snapshot& snapshot, v1::ConnectResponse& desired);
  static void AddDamaged(const State& shown, WorkerSession& session,
                         const WorkerSession::Snapshot& snapshot, v1::ConnectResponse& desired);

  const ControllerContext& context_;
  WorkerSessions& sessions_;
};

// Logs a refusal of `what`, unless it is expected of a stale report (Aborted, NotFound), which the
// worker's next desired state corrects, or of a claim, which the session has logged.
void LogUnlessStale(const std::string& what, const absl::Status& status);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SHARD_REPORTS_H_

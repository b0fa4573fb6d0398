// Common to the parts of the Controller: its options and the objects that several parts use.
//
// Ownership: the Controller owns everything that a context refers to, except the clock. Thread-
// safety: each object documents its own; options and the context itself do not change.
#ifndef NIBBLE_SERVER_CONTROLLER_CONTROLLER_CONTEXT_H_
#define NIBBLE_SERVER_CONTROLLER_CONTROLLER_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/controller/clock.h"
#include "server/controller/coordinator_metrics.h"
#include "server/controller/ledger.h"
#include "server/controller/live_status.h"
#include "server/controller/scheduling.h"
#include "server/controller/trash_registry.h"
#include "server/controller/watch_hub.h"
#include "server/scheduler/plan.h"
#include "server/state/decide.h"

namespace nibble {

struct ControllerOptions {
  std::string cluster;
  // 32 random hexadecimal digits, each time: for the ids of stores, epochs and lives, and the keys of
  // stores. Null, in tests: a new store gets no identity.
  std::function<std::string()> fresh_id;
  bool restored = false;                            // the store was restored from a backup
  int64_t orphan_grace_ms = int64_t{6} * 3600'000;  // orphans are kept at least this long
  int64_t lease_ms = 10'000;  // a worker without a report for this long is lost
  // How long the answer to a change of a recipe waits for ranks to switch; 0: not at all.
  int64_t switch_wait_ms = 1000;
  int copies = 2;           // workers that store each shard of a newest checkpoint
  // Where checkpoints are copied to, s3://BUCKET/PREFIX without a slash at its end; empty: nowhere.
  std::string object_store;
  int32_t object_store_keep = 2;  // newest copies of each job that stay
  double hang_factor = 20;  // a rank hangs after this multiple of its median step without one …
  int64_t hang_least_ms = 60'000;       // … and at least this long
  int64_t journal_updates = 1'000'000;  // kept for reading; entities are always kept
  size_t max_sessions = 20'000;         // workers connected at once
  scheduler::Policy policy;
  WatchLimits watches;
  // Whether events of jobs may be posted to a URL, or why not; null: to none. Called while a change
  // is decided, under the ledger's lock: it must be a pure function.
  std::function<absl::Status(const std::string& url)> may_post;
};

struct ControllerContext {
  const ControllerOptions& options;
  const Clock& clock;
  Ledger& ledger;
  LiveStatus& live;
  Moments& moments;
  OrphanRegistry& orphans;
  CoordinatorMetrics& metrics;
  TrashRegistry& trash;

  // The author and time of the coordinator's own changes.
  Caller coordinator() const { return {"coordinator", clock.NowUnixMs()}; }
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CONTROLLER_CONTEXT_H_

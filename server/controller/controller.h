// The coordinator without its network: takes requests, workers' reports and time; gives answers,
// desired states and watches. The Controller makes its parts, hands each durable update and each
// tick to them, and decides nothing itself:
//
//   Ledger            the only path of changes: decided, stored, applied, answered
//   ClientRequests    clients' changes and their answers
//   WatchFeed         watches of jobs and waits for them
//   WorkerSessions    streams of workers, and who is notified of a new desired state
//   WorkerReports     reports, desired states, leases; with Watchdog and ShardReports
//   Recovery          what workers have and the store does not know
//   SchedulingLoop    carries out plans of server/scheduler
//   CheckpointKeeper  copies, retention, requested tasks
//   CheckpointUploads copies in object storage
//
// Locks. Each part has a lock of its own, which it holds for its own data only: never while it
// calls the ledger or a callback. The ledger's lock, which orders changes, may be held around them.
// Nothing here waits for the disk except Tick, without a lock, when it trims the journal. Callbacks
// run after all locks are released: answers in the thread that made the change durable,
// notifications of watches and sessions in threads of their own, so that a slow reader delays no
// change.
//
// Time. Tick does everything that depends on time: expired leases, stops past their deadline,
// launches after a back-off, plans, copies, retention. Extra calls change nothing. Intervals are
// measured on the injected monotonic clock (Moments); the wall clock stamps what is stored.
//
// Restart. Everything acknowledged is known again. Workers that were present count as just heard
// from and keep their ranks; back-offs and graces are measured from their beginning.
//
// Ownership: borrows store and clock, which outlive it. Thread-safety: all methods. Callbacks may
// call every method but Settle and the destructor.
#ifndef NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_
#define NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/controller/checkpoint_keeper.h"
#include "server/controller/checkpoint_uploads.h"
#include "server/controller/client_requests.h"
#include "server/controller/clock.h"
#include "server/controller/controller_context.h"
#include "server/controller/coordinator_metrics.h"
#include "server/controller/ledger.h"
#include "server/controller/live_status.h"
#include "server/controller/reads.h"
#include "server/controller/recovery.h"
#include "server/controller/scheduling.h"
#include "server/controller/scheduling_loop.h"
#include "server/controller/trash_registry.h"
#include "server/controller/watch_feed.h"
#include "server/controller/worker_reports.h"
#include "server/controller/worker_session.h"
#include "server/store/store.h"

namespace nibble {

class Controller {
 public:
  // `stopped` is called once when the store has failed: the process must end. FailedPrecondition:
  // the store belongs to another cluster.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(
      Store& store, const Clock& clock, ControllerOptions options,
      std::function<void(const absl::Status&)> stopped);
  ~Controller();

  ClientRequests& requests() { return requests_; }
  WatchFeed& watches() { return watches_; }
  WorkerSessions& sessions() { return sessions_; }
  WorkerReports& reports() { return reports_; }

  // A read of server/controller/reads.h.
  // `view`: what the caller sees.
  template <class Request>
  auto Read(const Request& request, const ProjectView& view = ProjectView()) const {
    return Inspect([&](const State& shown) {
      const ReadContext context{shown, live_, clock_.SteadyMs(), &orphans_, view, &trash_};
      auto answer = Answer(context, request);
      if (answer.ok()) Redact(view, shown, *answer);
      return answer;
    });
  }
  // f(shown): reads the durable state.
  template <class F>
  auto Inspect(F f) const {
    return ledger_->Read(f);
  }

  // Does what is due; see above. A call during another one, from another thread or a callback,
  // returns at once.
  void Tick();
  // Before a Tick: this process did not run for `paused_ms`, as after a suspension of its machine.
  // It heard nobody meanwhile, so unless the pause was much shorter than a lease, no lease ends
  // within another one from now.
  void NotePause(int64_t paused_ms);
  // Before the end of the process: from here on every change is answered as soon as it is durable.
  void StopWaiting() { requests_.StopWaiting(); }
  // Waits until all consequences of ticks and reports are durable and all notifications were sent.
  void Settle();

  // OK, or why no change is accepted: the store has stopped, or this coordinator was replaced.
  absl::Status Health() const;
  const Clock& clock() const { return clock_; }
  struct Connected {
    size_t workers = 0;  // streams of daemons
    size_t watches = 0;
    size_t waits = 0;
  };
  Connected CountConnected() const;
  CoordinatorMetrics& metrics() { return metrics_; }
  const CoordinatorMetrics& metrics() const { return metrics_; }

 private:
  static void Redact(const ProjectView& view, const State& shown,
                     google::protobuf::Message& answer) {
    view.Redact(shown, answer);
  }
  static void Redact(const ProjectView&, const State&, LogAttempt&) {}

  Controller(Store& store, const Clock& clock, ControllerOptions options,
             std::unique_ptr<Ledger> ledger);

  absl::Status Begin();
  // Handles a durable update; called in the journal's order.
  void HandleApplied(const Ledger::Applied& applied);
  void TrimHistory();

  Store& store_;
  const Clock& clock_;
  const ControllerOptions options_;
  CoordinatorMetrics metrics_;
  LiveStatus live_;
  Moments moments_;
  OrphanRegistry orphans_;
  TrashRegistry trash_;
  const std::unique_ptr<Ledger> ledger_;
  const ControllerContext context_;  // refers to the above

  // In the order in which they use each other.
  ClientRequests requests_;
  WatchFeed watches_;
  WorkerSessions sessions_;
  Recovery recovery_;
  CheckpointKeeper keeper_;
  CheckpointUploads uploads_;
  WorkerReports reports_;
  SchedulingLoop scheduling_;

  std::atomic<bool> ticking_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_

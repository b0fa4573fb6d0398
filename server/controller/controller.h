// The coordinator without its network: takes requests, workers' reports and time; gives answers,
// desired states and watches. The Ledger orders and stores changes, the functions of server/state
// decide them, server/scheduler plans, LiveFacts has what is not stored, WatchHub serves watches.
// The Controller connects them and decides nothing else.
//
// Time. Tick does everything that depends on time: expired leases, stops past their deadline,
// launches after a back-off, plans, copies, retention. It reads the injected clock and waits for no
// disk except when it trims the journal; extra calls change nothing. Intervals are measured on the
// monotonic clock (Moments); the wall clock stamps what is stored.
//
// Restart. Everything acknowledged is known again. Workers that were present count as just heard
// from and keep their ranks; back-offs and graces are measured from their beginning.
//
// Ownership: borrows store and clock, which outlive it. Thread-safety: all methods. `done`
// callbacks, and `notify` of sessions and watches, run in the caller's thread or the store's and
// must not wait for another answer.
#ifndef NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_
#define NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/checkpoint_care.h"
#include "server/controller/checkpoint_care_rounds.h"
#include "server/controller/clock.h"
#include "server/controller/coordinator_metrics.h"
#include "server/controller/ledger.h"
#include "server/controller/live_facts.h"
#include "server/controller/reads.h"
#include "server/controller/scheduling.h"
#include "server/controller/switch_answers.h"
#include "server/controller/watch_hub.h"
#include "server/scheduler/plan.h"
#include "server/store/store.h"

namespace nibble {

struct ControllerOptions {
  std::string cluster;
  // The identity of a store that has none yet: 32 random hexadecimal digits. Empty, in tests: none.
  std::string fresh_store_id;
  bool restored = false;                            // the store was restored from a backup
  int64_t orphan_grace_ms = int64_t{6} * 3600'000;  // orphans are kept at least this long
  int64_t lease_ms = 10'000;  // a worker without a report for this long is lost
  // How long the answer to a change of a recipe waits for ranks to switch; 0: not at all.
  int64_t switch_wait_ms = 1000;
  int copies = 2;           // workers that hold each shard of a newest checkpoint
  double hang_factor = 20;  // a rank hangs after this multiple of its median step without one …
  int64_t hang_least_ms = 60'000;       // … and at least this long
  int64_t journal_updates = 1'000'000;  // kept for reading; entities are always kept
  size_t max_sessions = 20'000;         // workers connected at once
  scheduler::Policy policy;
  WatchLimits watches;
  // Whether events of jobs may be posted to a URL, or why not; null: to none.
  std::function<absl::Status(const std::string& url)> may_post;
};

// One stream of a worker. Only the controller uses its fields.
class WorkerSession {
 private:
  friend class Controller;
  std::function<void()> notify_;
  std::function<void(absl::Status)> end_;
  // Guarded by the controller's mutex.
  int64_t heard_ms_ = 0;
  std::string worker_;
  int64_t incarnation_ = 0;
  std::map<std::string, v1::ShardReport> held_;  // by shard key
  int64_t number_ = 0;
  int64_t answered_ = 0;  // number of the newest report whose consequences are durable
  // Copies that it was ordered to drop, by shard key: the number of the latest such answer. Until
  // the worker acknowledges that number, its reports about these shards are stale.
  std::map<std::string, int64_t> told_;
  // Damaged copies that were given up and that it was not yet ordered to drop, by shard key. Its
  // reports about them are stale, too.
  std::set<std::string> damaged_;
};

class Controller {
 public:
  template <class Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>)>;

  // `stopped` is called once when the store has failed: the process must end. FailedPrecondition:
  // the store belongs to another cluster.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(
      Store& store, const Clock& clock, ControllerOptions options,
      std::function<void(const absl::Status&)> stopped);
  ~Controller();

  // A mutation of server/state/decide.h, answered when it is durable. A change of a recipe is
  // answered when ranks have switched, or ControllerOptions::switch_wait_ms later. Instantiated for
  // each mutation in controller_requests.cc.
  template <class Response, class Request>
  void Change(const Request& request, const std::string& author, Done<Response> done);
  // As Change, but waits. Must not be called from a callback.
  template <class Response, class Request>
  absl::StatusOr<Response> ChangeAndWait(const Request& request, const std::string& author);

  // Records the results of posted events; done(OK) when they are durable.
  void RecordPosts(const std::vector<v1::PostsSettled>& settled,
                   std::function<void(const absl::Status&)> done);

  // A read of server/controller/reads.h.
  template <class Request>
  auto Read(const Request& request) const {
    return ledger_->Read([&](const State& shown) {
      return Answer(ReadContext{shown, live_, clock_.SteadyMs(), &orphans_}, request);
    });
  }
  // See WatchJobs and WaitJob in proto/nibble/v1/coordinator.proto. The reader closes its watch.
  absl::StatusOr<std::shared_ptr<Watch>> OpenWatch(const v1::WatchJobsRequest& request,
                                                   std::function<void()> notify);
  void CloseWatch(const std::shared_ptr<Watch>& watch) { hub_.Close(watch); }
  // Requests one call of the watch's `notify`, once it has something to read or is over.
  void AskWatch(const std::shared_ptr<Watch>& watch) { hub_.Ask(watch); }
  // Calls `done` once, perhaps before this returns. A result above 0 is for EndWait, after which
  // `done` may still be running.
  int64_t Wait(const v1::WaitJobRequest& request, std::function<void(absl::Status)> done);
  void EndWait(int64_t number) { hub_.EndWait(number); }

  // controller_workers.cc. `notify`: the desired state of the session may have changed. `end`: the
  // session has expired, without a report for a lease; it may be called more than once.
  absl::StatusOr<std::shared_ptr<WorkerSession>> OpenSession(
      std::function<void()> notify, std::function<void(absl::Status)> end = nullptr);
  void CloseSession(const std::shared_ptr<WorkerSession>& session);
  // Takes a report; done(OK) when its consequences are durable; with an error, the stream must end
  // with it. Reports of one session must come one after the other.
  void Report(const std::shared_ptr<WorkerSession>& session, const v1::ConnectRequest& report,
              std::function<void(absl::Status)> done);
  // The complete desired state, for a session that has reported.
  v1::ConnectResponse Desired(const std::shared_ptr<WorkerSession>& session);

  // Does what is due; see above.
  void Tick();
  // Before the end of the process: from here on every change is answered as soon as it is durable.
  void StopWaiting();
  // Waits until all consequences of Tick and reports are durable and were announced.
  void Settle() {
    ledger_->Settle();
    hub_.Settle();
  }

  absl::Status Health() const { return ledger_->Health(); }
  const Clock& clock() const { return clock_; }

  // f(shown): reads the durable state.
  template <class F>
  auto Inspect(F f) const {
    return ledger_->Read(f);
  }
  struct Connected {
    size_t workers = 0;  // streams of daemons
    size_t watches = 0;
    size_t waits = 0;
  };
  Connected CountConnected() const;
  CoordinatorMetrics& metrics() { return metrics_; }
  const CoordinatorMetrics& metrics() const { return metrics_; }

 private:
  Controller(const Clock& clock, ControllerOptions options);

  Caller CoordinatorNow() const { return {"coordinator", clock_.NowUnixMs()}; }
  // A change that nobody waits for; refusals are logged as `what`.
  void ChangeAlone(absl::FunctionRef<MaybeUpdate(const State&)> decide, const std::string& what);

  // Handles an applied update; returns the part that must run without the ledger's lock.
  std::function<void()> Applied(const Ledger::Applied& applied);
  // If the update begins a new epoch: notes its time and logs it.
  void NoteEpoch(const v1::Update& update);
  template <class Response>
  void Complete(bool dry_run, Response& response) const;
  template <class Response>
  void AnswerWhenSwitched(const std::string& job, std::shared_ptr<Response> response,
                          Done<Response> done);

  void TakeGang(const std::string& worker, int64_t incarnation, const v1::GangReport& gang);
  // controller_checkpoints.cc. The first check of a report.
  void CheckStoreIsNewest(const v1::ConnectRequest& report);
  void TakeOrphans(const v1::ConnectRequest& report);
  void AddOrphanOrders(const State& state, const std::string& worker,
                       v1::ConnectResponse& desired) const;
  // controller_plan.cc. Why no attempt of the job may start yet, despite its slots; empty: it may.
  std::string WhyNotLaunched(const State& state, const v1::JobRecord& job) const;
  std::map<std::string, std::string> HeldForRecovery(const State& state) const;

  void CheckHang(const std::string& worker, const v1::GangReport& gang);
  // Ends an attempt whose surviving ranks do not end after others of it have failed (`peers_lost`).
  void CheckSurvivors(const std::string& worker, const v1::GangReport& gang, bool peers_lost);
  // Takes the damage found by readers on the worker; orders given-up copies to be dropped.
  void TakeDamage(const v1::ConnectRequest& report);
  void TakeShards(const std::shared_ptr<WorkerSession>& session, const v1::ConnectRequest& report);
  // Adds orders to drop the session's surplus copies, and remembers them in told_.
  void AddSurplus(const std::shared_ptr<WorkerSession>& session, const std::string& worker,
                  const std::vector<v1::ShardReport>& held, v1::ConnectResponse& desired);
  // Adds orders to drop its damaged copies that were given up, once.
  void AddDamaged(const std::shared_ptr<WorkerSession>& session, const std::string& worker,
                  const std::vector<v1::ShardReport>& held, v1::ConnectResponse& desired);

  static void AddDropped(const v1::ShardReport& shard, v1::ConnectResponse& desired);
  // Refusals to expect of a worker's report: its next desired state corrects it.
  static bool IsStale(const absl::Status& status);

  // Adds the `notify` of the worker's sessions. With mutex_ held.
  void AddNotify(const std::string& worker, std::vector<std::function<void()>>& notify) const;
  void EndSilentSessions(int64_t now_ms);
  void EndLeases(int64_t now_ms);
  void EndStops(int64_t now_ms);
  void PlanSlots(int64_t now_ms);
  void Carry(const scheduler::Decision& decision, int64_t now_ms);
  bool Launch(const std::string& job, const scheduler::Placement& placement,
              const std::string& reason);
  void CareForCheckpoints();
  void TrimCheckpoints();
  void GiveUpSurplus(const std::string& job);
  void TrimHistory();

  const Clock& clock_;
  const ControllerOptions options_;
  CoordinatorMetrics metrics_;
  LiveFacts live_;
  Moments moments_;
  OrphanBook orphans_;
  // SteadyMs when the epoch began; 0: before this process.
  std::atomic<int64_t> restored_ms_ = 0;
  WatchHub hub_;
  SwitchAnswers switches_;
  Store* store_ = nullptr;

  std::mutex tick_mutex_;  // one Tick at a time; taken before all other locks
  // Guarded by tick_mutex_.
  Promises promises_;
  int64_t planned_sequence_ = -1;
  int64_t planned_ms_ = 0;
  CheckpointCareRounds care_;

  mutable std::mutex mutex_;  // never held while the ledger is called
  // Guarded by mutex_.
  std::set<std::shared_ptr<WorkerSession>> sessions_;
  int64_t none_silent_before_ms_ = 0;
  struct PeerLoss {
    int64_t attempt = 0;
    int64_t since_ms = 0;
  };
  std::map<std::string, PeerLoss> peer_losses_;   // by job; see CheckSurvivors
  int64_t opened_sequence_ = 0;                   // of the store at the start; set once
  std::map<std::string, int64_t> told_sequence_;  // of the latest answer to each worker
  // Sessions that have reported, by worker; a worker has two while an old stream is ending.
  std::multimap<std::string, std::shared_ptr<WorkerSession>> session_of_;
  std::map<std::string, CheckpointWork> work_;  // by worker
  std::set<std::string> to_trim_;               // jobs whose checkpoints changed
  std::set<std::string> to_care_for_;           // jobs of which anything changed
  bool workers_changed_ = false;

  std::unique_ptr<Ledger> ledger_;  // last: its callbacks use the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_

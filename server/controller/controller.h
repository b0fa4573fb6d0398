// The coordinator without its network: requests, reports of workers and time come in; answers,
// desired states and watches go out. It divides the labour so: the Ledger orders and stores
// changes, the functions of server/state decide them, server/scheduler plans, LiveFacts remembers
// what is not stored, WatchHub tells who watches. Here they meet, and nothing else is decided.
//
// Time. Tick does all that time brings: leases that run out, stops whose time is over, launches
// after a back-off, plans of the scheduler, copies, retention. It reads the injected clock, waits
// for no disk but where it trims the journal, and doing it more often than needed changes nothing.
// All of it is measured on the monotonic clock (Moments); the wall clock stamps what is stored.
//
// Restart. Everything acknowledged is known again; workers that were present count as just heard
// from, and keep what they run; back-offs and graces are measured from their beginning.
//
// Ownership: borrows store and clock, which outlive it. Thread-safety: all methods. `done`
// callbacks run in the caller's thread or the store's and must not wait for another answer;
// `notify` of sessions and watches likewise.
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
#include "server/controller/ledger.h"
#include "server/controller/live_facts.h"
#include "server/controller/moments.h"
#include "server/controller/orphan_book.h"
#include "server/controller/reads.h"
#include "server/controller/scheduling.h"
#include "server/controller/switch_answers.h"
#include "server/controller/watch_hub.h"
#include "server/metrics/coordinator_metrics.h"
#include "server/scheduler/decisions.h"
#include "server/store/store.h"

namespace nibble {

struct ControllerOptions {
  std::string cluster;
  // For a store that is made, or has no identity: 32 random hexadecimal digits. Empty, in tests: it
  // gets none.
  std::string fresh_store_id;
  bool restored = false;                            // the store was put back from a backup
  int64_t orphan_grace_ms = int64_t{6} * 3600'000;  // an orphan is removed no earlier
  int64_t lease_ms = 10'000;  // without a report for so long a worker counts as lost
  // The answer to a change of a recipe waits so long until ranks have switched; 0: not at all.
  int64_t switch_wait_ms = 1000;
  int copies = 2;           // workers that hold each shard of a newest checkpoint
  double hang_factor = 20;  // a rank hangs without a step for so many of its median steps …
  int64_t hang_least_ms = 60'000;       // … and at least for so long
  int64_t journal_updates = 1'000'000;  // kept for reading; entities are kept anyway
  size_t max_sessions = 20'000;         // workers connected at once
  scheduler::Policy policy;
  WatchLimits watches;
  // Whether events of jobs may be posted to a URL, and why not; null: to none.
  std::function<absl::Status(const std::string& url)> may_post;
};

// One stream of a worker. Its fields are the controller's.
class WorkerSession {
 private:
  friend class Controller;
  std::function<void()> notify_;
  std::function<void(absl::Status)> end_;
  // Guarded by the controller's mutex.
  int64_t heard_ms_ = 0;
  std::string worker_;
  int64_t incarnation_ = 0;
  std::map<std::string, v1::ShardReport> held_;  // by key of the shard
  int64_t number_ = 0;
  int64_t answered_ = 0;  // number of the newest report whose consequences are durable
  // Surplus copies that it was told to drop, by key of the shard: number of the latest answer that
  // said so. Until that is carried out, what it says of them is of before.
  std::map<std::string, int64_t> told_;
  // Copies that were found damaged and given up, by key, of which it was not told yet: what it says
  // of them is of before, too.
  std::set<std::string> damaged_;
};

class Controller {
 public:
  template <class Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>)>;

  // `stopped` is called once when the store has failed: the process is to end. FailedPrecondition
  // for the store of another cluster.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(
      Store& store, const Clock& clock, ControllerOptions options,
      std::function<void(const absl::Status&)> stopped);
  ~Controller();

  // A mutation of server/state/decide.h, answered when it is durable; a change of a recipe that
  // ranks are about to switch to when they have, or ControllerOptions::switch_wait_ms later.
  // Instantiated for each of them in controller_requests.cc.
  template <class Response, class Request>
  void Change(const Request& request, const std::string& author, Done<Response> done);
  // Waits; not from a callback.
  template <class Response, class Request>
  absl::StatusOr<Response> ChangeAndWait(const Request& request, const std::string& author);

  // What has become of posts of jobs' events; done(OK) when it is durable.
  void RecordPosts(const std::vector<v1::PostsSettled>& settled,
                   std::function<void(const absl::Status&)> done);

  // A read of server/controller/reads.h.
  template <class Request>
  auto Read(const Request& request) const {
    return ledger_->Read([&](const State& shown) {
      return Answer(ReadContext{shown, live_, clock_.SteadyMs(), &orphans_}, request);
    });
  }
  // controller_watch.cc. See WatchJobs and WaitJob of the contract. A watch is closed by its
  // reader.
  absl::StatusOr<std::shared_ptr<Watch>> OpenWatch(const v1::WatchJobsRequest& request,
                                                   std::function<void()> notify);
  void CloseWatch(const std::shared_ptr<Watch>& watch) { hub_.Close(watch); }
  // `notify` of the watch is called once, as soon as it has something to read or is over.
  void AskWatch(const std::shared_ptr<Watch>& watch) { hub_.Ask(watch); }
  // `done` is called once, perhaps before this returns. A number above 0 is for EndWait, after
  // which `done` may still be under way.
  int64_t Wait(const v1::WaitJobRequest& request, std::function<void(absl::Status)> done);
  void EndWait(int64_t number) { hub_.EndWait(number); }

  // controller_workers.cc. `notify`: the desired state of the session may be another than last
  // said. `end`: the session is over because nothing was reported for as long as a lease; it may be
  // called more than once.
  absl::StatusOr<std::shared_ptr<WorkerSession>> OpenSession(
      std::function<void()> notify, std::function<void(absl::Status)> end = nullptr);
  void CloseSession(const std::shared_ptr<WorkerSession>& session);
  // Takes what the worker says; done(OK) when what followed from it is durable, else the stream is
  // to end with the status. Reports of one session come one after the other.
  void Report(const std::shared_ptr<WorkerSession>& session, const v1::ConnectRequest& report,
              std::function<void(absl::Status)> done);
  // Whole; of a session that has reported.
  v1::ConnectResponse Desired(const std::shared_ptr<WorkerSession>& session);

  // controller_tick.cc
  void Tick();
  // The process is to end: every change is answered as soon as it is durable.
  void StopWaiting();
  // Waits until what Tick and reports have begun is durable, and whoever waited for it was told.
  void Settle() {
    ledger_->Settle();
    hub_.Settle();
  }

  absl::Status Health() const { return ledger_->Health(); }
  const Clock& clock() const { return clock_; }

  // For who shows what the coordinator does. f(shown): only what is durable.
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
  // For what nobody waits for; refusals of State are logged.
  void ChangeAlone(absl::FunctionRef<MaybeUpdate(const State&)> decide, const std::string& what);

  // What follows from an update; returned is what may only be done without the ledger's lock.
  std::function<void()> Applied(const Ledger::Applied& applied);
  // A new epoch: what follows from it for launches, and the log.
  void NoteEpoch(const v1::Update& update);
  template <class Response>
  void Complete(bool dry_run, Response& response) const;
  template <class Response>
  void AnswerWhenSwitched(const std::string& job, std::shared_ptr<Response> response,
                          Done<Response> done);

  void TakeGang(const std::string& worker, int64_t incarnation, const v1::GangReport& gang);
  // controller_orphans.cc. Before anything else of a report.
  void CheckStoreIsNewest(const v1::ConnectRequest& report);
  void TakeOrphans(const v1::ConnectRequest& report);
  void AddOrphanOrders(const State& state, const std::string& worker,
                       v1::ConnectResponse& desired) const;
  // Why no attempt of the job may start yet, though it has slots; empty: it may.
  std::string WhyNotLaunched(const State& state, const v1::JobRecord& job) const;
  std::map<std::string, std::string> HeldForRecovery(const State& state) const;

  void CheckHang(const std::string& worker, const v1::GangReport& gang);
  // Ranks that still live although others of their attempt ended as they had lost them.
  // `peers_lost`: there are such.
  void CheckSurvivors(const std::string& worker, const v1::GangReport& gang, bool peers_lost);
  // What readers on the worker have found damaged; a copy that is given up is to go where it is.
  void TakeDamage(const v1::ConnectRequest& report);
  void TakeShards(const std::shared_ptr<WorkerSession>& session, const v1::ConnectRequest& report);
  // Adds the surplus copies among those of the session, and remembers that it is told.
  void AddSurplus(const std::shared_ptr<WorkerSession>& session, const std::string& worker,
                  const std::vector<v1::ShardReport>& held, v1::ConnectResponse& desired);
  // Adds its damaged copies that were given up, once.
  void AddDamaged(const std::shared_ptr<WorkerSession>& session, const std::string& worker,
                  const std::vector<v1::ShardReport>& held, v1::ConnectResponse& desired);

  // Adds what tells the worker that its desired state may be another. With mutex_ held.
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
  // When the epoch began in this process, by SteadyMs; 0: before it.
  std::atomic<int64_t> restored_ms_ = 0;
  WatchHub hub_;
  SwitchAnswers switches_;
  Store* store_ = nullptr;

  std::mutex tick_mutex_;  // one Tick at a time; taken first of all
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
  int64_t opened_sequence_ = 0;                   // of the store when this process began; set once
  std::map<std::string, int64_t> told_sequence_;  // the latest of each worker's answers
  // Those that have reported, by worker: of one more than one while an old stream is ending.
  std::multimap<std::string, std::shared_ptr<WorkerSession>> session_of_;
  std::map<std::string, CheckpointWork> work_;  // by worker
  std::set<std::string> to_trim_;               // jobs whose checkpoints have changed
  std::set<std::string> to_care_for_;           // jobs of which anything has
  bool workers_changed_ = false;

  std::unique_ptr<Ledger> ledger_;  // last: its callbacks use the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CONTROLLER_H_

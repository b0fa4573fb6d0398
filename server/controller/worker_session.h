// One stream of a worker (WorkerSession) and all open ones (WorkerSessions).
//
// A session is notified when the desired state of its worker may have changed. Notifications run in
// a thread of their own, one at a time, so that they delay neither changes nor reports.
// Notifications of a session that have not begun are merged: the desired state is complete, and the
// reader of a session fetches the newest.
//
// Ownership: sessions are shared by WorkerSessions and their streams. Thread-safety: all methods.
// `notify`, `end` and `refused` run without a lock and may call everything except
// WorkerSessions::Settle and Stop.
#ifndef NIBBLE_SERVER_CONTROLLER_WORKER_SESSION_H_
#define NIBBLE_SERVER_CONTROLLER_WORKER_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/clock.h"
#include "server/controller/live_status.h"
#include "server/controller/trash_registry.h"

namespace nibble {

class WorkerSession {
 public:
  using Notify = std::function<void()>;
  using End = std::function<void(absl::Status)>;
  // Receives each refused claim once: what it is about, such as "job train-7 step 300", and why.
  using Refused = std::function<void(const std::string& subject, const absl::Status& why)>;
  static constexpr size_t kMostShards = 1'000'000;

  // `most_shards`: that are kept of reports with a part of the worker's shards.
  WorkerSession(Notify notify, End end, Refused refused, int64_t now_ms,
                size_t most_shards = kMostShards)
      : notify_(std::move(notify)),
        end_(std::move(end)),
        refused_(std::move(refused)),
        most_shards_(most_shards),
        heard_ms_(now_ms) {}

  void CallNotify() const {
    if (notify_) notify_();
  }
  void CallEnd(const absl::Status& why) const {
    if (end_) end_(why);
  }

  // A report has arrived. InvalidArgument: the stream belongs to another worker or incarnation.
  absl::Status NoteReport(const v1::WorkerIdentity& identity, int64_t now_ms);
  // The worker has registered. Returns whether the session had no worker before.
  bool SetWorker(const v1::WorkerIdentity& identity);
  std::string worker() const;  // empty: no report yet
  int64_t heard_ms() const;    // of the newest report, or of the opening
  // The consequences of report `number` are durable.
  void NoteDurable(int64_t number);

  // The shards of a report, which replace all earlier ones if `all_shards`. Otherwise new ones are
  // left out beyond `most_shards`, until a report has all. Orders to drop copies that the report
  // acknowledges are over.
  void NoteShards(const v1::ConnectRequest& report);
  // The copy was found damaged and given up; the worker is yet to be ordered to drop it.
  void NoteDamaged(const std::string& shard_key);
  // Desired state `number` orders the worker to drop the copy.
  void NoteDropOrder(const std::string& shard_key, int64_t number);
  // Whether a report about the shard is stale: the copy is damaged, or the report does not
  // acknowledge the newest order to drop it. `acknowledged`: the newest desired state that it does.
  bool IsStale(const std::string& shard_key, int64_t acknowledged) const;
  // Keys of damaged copies for which there is no order yet. TakeDamaged removes them.
  std::set<std::string> damaged() const;
  void TakeDamaged(const std::set<std::string>& shard_keys);

  // A desired state of this stream orders the worker to make copies and to carry out tasks.
  void NoteOrders(const v1::ConnectResponse& desired);
  // Whether a recent one has: claims arrive a little later than the end of an order.
  bool WasOrderedCopy(const v1::CheckpointRef& ref, int32_t rank) const;
  bool WasOrderedTask(const v1::CheckpointRef& ref, int64_t task) const;
  // Any task of the checkpoint.
  bool WasOrderedTask(const v1::CheckpointRef& ref) const;
  // Whether no desired state was made yet: the orders of an earlier stream are unknown, so a claim
  // without one may be honest, and is repeated.
  bool BeforeOrders() const;
  // The worker has made a claim that it may not make (worker_claims.h): logged and reported to
  // `refused` the first time, because reports repeat it. To be called without any lock.
  void Refuse(const std::string& subject, const absl::Status& why);

  // What the next desired state is made from.
  struct Snapshot {
    std::string worker;
    int64_t incarnation = 0;
    int64_t number = 0;    // of this desired state
    int64_t answered = 0;  // the newest report whose consequences are durable
    std::vector<v1::ShardReport> shards;
  };
  Snapshot BeginDesired();

 private:
  // Orders are kept for this many later desired states.
  static constexpr int64_t kOrderMemory = 32;
  // Then refusals are forgotten, and may be recorded again.
  static constexpr size_t kMaxRefusals = 1000;

  bool WasOrdered(const std::string& order) const;

  const Notify notify_;
  const End end_;
  const Refused refused_;
  const size_t most_shards_;

  mutable Mutex mutex_;
  int64_t heard_ms_ ABSL_GUARDED_BY(mutex_);
  std::string worker_ ABSL_GUARDED_BY(mutex_);
  int64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  // By shard key.
  std::map<std::string, v1::ShardReport> shards_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> drop_orders_ ABSL_GUARDED_BY(mutex_);  // the newest number
  std::set<std::string> damaged_ ABSL_GUARDED_BY(mutex_);
  // The newest desired state with each order.
  std::map<std::string, int64_t> orders_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> refusals_ ABSL_GUARDED_BY(mutex_);
};

class WorkerSessions {
 public:
  using Session = std::shared_ptr<WorkerSession>;

  struct Options {
    size_t most = 0;       // open at once
    int64_t lease_ms = 0;  // a session without a report for longer ends
  };

  // Forgets the orphans and the trash of a worker when its last session closes.
  WorkerSessions(const Clock& clock, const Options& options, OrphanRegistry& orphans,
                 TrashRegistry& trash);
  ~WorkerSessions() { Stop(); }

  // `notify`: the desired state may have changed. `end`: the session has expired, without a report
  // for a lease; it may be called more than once. ResourceExhausted: too many sessions are open.
  // `refused`: as of WorkerSession.
  absl::StatusOr<Session> Open(WorkerSession::Notify notify, WorkerSession::End end = nullptr,
                               WorkerSession::Refused refused = nullptr);
  // No `notify` begins after this; one may still be running.
  void Close(const Session& session);
  // The worker of an open session has registered. A worker has two sessions while an old stream is
  // ending.
  void SetWorker(const Session& session, const v1::WorkerIdentity& identity);
  std::vector<Session> Of(const std::string& worker) const;
  size_t count() const;

  // Notifies the sessions of these workers.
  void Notify(const std::set<std::string>& workers);
  void EndSilent(int64_t now_ms);
  // No session ends for its silence before `until_ms`.
  void PostponeEnds(int64_t until_ms);
  // Waits until all notifications so far have run.
  void Settle();
  // Waits for the running notification; no other begins.
  void Stop();

 private:
  void Serve();
  bool IsOpen(const Session& session) const;

  const Clock& clock_;
  const Options options_;
  OrphanRegistry& orphans_;
  TrashRegistry& trash_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::set<Session> sessions_ ABSL_GUARDED_BY(mutex_);
  std::multimap<std::string, Session> by_worker_ ABSL_GUARDED_BY(mutex_);
  int64_t none_silent_before_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<Session> to_notify_ ABSL_GUARDED_BY(mutex_);
  bool notifying_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WORKER_SESSION_H_

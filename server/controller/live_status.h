// State that the coordinator knows from reports and plans and never stores; after a restart the
// workers report it again. LiveStatus: leases, the progress of ranks, their sampled steps, why jobs
// are pending. OrphanRegistry: what workers have of jobs that the store's present epoch did not
// order.
//
// Ownership: own their contents. Thread-safety: all methods; they call no other object, so any lock
// may be held around them.
#ifndef NIBBLE_SERVER_CONTROLLER_LIVE_STATUS_H_
#define NIBBLE_SERVER_CONTROLLER_LIVE_STATUS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/mutex.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide.h"
#include "server/state/state.h"
#include "server/state/workers.h"

namespace nibble {

class LiveStatus {
 public:
  // Per job; beyond it every second sample is dropped.
  static constexpr size_t kMaxSamples = 4096;

  explicit LiveStatus(int64_t lease_ms) : leases_(lease_ms) {}

  // Present workers count as just heard from; the progress of living attempts is unknown.
  void Restart(const State& state, int64_t now_ms);
  void NoteHeartbeat(const std::string& worker, int64_t incarnation, int64_t now_ms);
  // Removes and returns the expired leases.
  std::vector<Leases::Lease> TakeExpired(int64_t now_ms);
  // No lease expires before `until_ms`.
  void PostponeExpiries(int64_t until_ms);
  std::optional<int64_t> LastHeard(const std::string& worker) const;

  // Takes a report of ranks of a job's living attempt. Samples of repeated steps replace those of
  // the attempt before. Returns the new samples.
  std::vector<v1::StepSample> Report(const std::string& job, int64_t attempt, int64_t next_step,
                                     const std::vector<v1::StepSample>& samples);
  // Rank 0 of the attempt has reported its progress, which was unknown since Restart.
  void NoteRank0(const std::string& job, int64_t attempt);
  LiveProgress ProgressOf(const std::string& job) const;
  // The duration of the job's newest sampled step; 0: unknown.
  double StepSecondsOf(const std::string& job) const;
  // By step. Shared, so that reports do not wait while they are copied.
  using Sample = std::shared_ptr<const v1::StepSample>;
  std::vector<Sample> SamplesOf(const std::string& job) const;
  // Takes what the worker's report says about its ranks and about precision. A report of a later
  // attempt drops the ranks of the one before.
  void ReportRanks(const std::string& worker, const v1::GangReport& gang);
  // The ranks of that attempt, by rank; empty if none has reported.
  std::vector<v1::RankPace> RanksOf(const std::string& job, int64_t attempt) const;
  // The latest of the job; unset: none was reported.
  std::optional<v1::PrecisionSummary> PrecisionOf(const std::string& job) const;
  void Forget(const std::string& job);

  // Replaces the reasons, in the scheduler's words, by pending job.
  void SetPending(std::map<std::string, std::string> reasons);
  std::string PendingOf(const std::string& job) const;

 private:
  struct Progress {
    LiveProgress live;
    int64_t seen = 0;            // samples received, count
    int64_t stride = 1;          // one of this many is kept
    std::deque<Sample> samples;  // the newest is always last, kept or not
    bool rewinds = false;        // the next sample is the first of its attempt
    bool last_is_extra = false;  // the last is kept only because it is the newest
    int64_t ranks_attempt = 0;   // whose ranks are in `ranks`
    std::map<int32_t, v1::RankPace> ranks;
    std::optional<v1::PrecisionSummary> precision;
  };

  mutable Mutex mutex_;
  Leases leases_ ABSL_GUARDED_BY(mutex_);
  int64_t none_expires_before_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Progress> progress_ ABSL_GUARDED_BY(mutex_);  // by job
  // Attempts whose rank 0 has not reported since Restart, by job.
  std::map<std::string, int64_t> unheard_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> pending_ ABSL_GUARDED_BY(mutex_);  // reasons, by job
};

// What present workers last reported of jobs that the store's present epoch did not order, for
// recovery (DecideRecover) and for people.
class OrphanRegistry {
 public:
  // The orphans of one job, by worker; owns what the evidence points to.
  class Holdings {
   public:
    explicit Holdings(std::map<std::string, v1::Orphan> by_worker);
    Holdings(const Holdings&) = delete;
    Holdings& operator=(const Holdings&) = delete;
    Evidence evidence() const { return evidence_; }

   private:
    std::map<std::string, v1::Orphan> by_worker_;
    std::vector<OrphanEvidence> evidence_;
  };

  // Replaces what is known of the worker by a report that names all its shards (`all_shards`).
  // `ours`: the store's identity. Leaves out what `believes` refuses of a job and the store that
  // ordered its data.
  void Replace(
      const std::string& worker, const v1::ConnectRequest& report, const v1::StoreIdentity& ours,
      const std::function<bool(const std::string& job, const v1::StoreIdentity& store)>& believes);
  // The worker is away.
  void Forget(const std::string& worker);

  Holdings Of(const std::string& job) const;
  // Job ids, of all workers or of one.
  std::set<std::string> Jobs() const;
  std::set<std::string> JobsOn(const std::string& worker) const;
  // The attempt of the job that runs on the worker; 0: none.
  int64_t RunningOn(const std::string& worker, const std::string& job) const;
  // How many ranks of the attempt run, on all workers; unset: a worker has not said.
  std::optional<int64_t> RanksOf(const std::string& job, int64_t attempt) const;
  // Whether data that the store has ordered is the job's own (IsOwn).
  using Owns = absl::FunctionRef<bool(const v1::StoreIdentity& store)>;
  // A worker that runs another attempt of the job than `living`; empty: none.
  std::string StrayOf(const std::string& job, int64_t living, Owns owns) const;
  // What a worker has of another job with the same id, which is another store's.
  struct Namesake {
    std::string store;  // id
    bool running = false;
  };
  // By worker.
  std::map<std::string, Namesake> NamesakesOf(const std::string& job, Owns owns) const;
  // Shards that the worker has under an order of an older epoch, for their acknowledgement.
  std::vector<v1::ShardReport> ShardsOn(const std::string& worker) const;
  bool empty() const;

 private:
  void Erase(const std::string& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  using ByWorker = std::map<std::string, v1::Orphan>;
  using Ranks = std::map<std::pair<std::string, int64_t>, int64_t>;  // by job and attempt

  mutable Mutex mutex_;
  std::map<std::string, ByWorker> orphans_ ABSL_GUARDED_BY(mutex_);  // by job
  std::map<std::string, Ranks> ranks_ ABSL_GUARDED_BY(mutex_);       // that run, by worker
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_LIVE_STATUS_H_

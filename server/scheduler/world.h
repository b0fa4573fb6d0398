// The cluster while a plan is made: quotas (Ledger), slots and claims (World), and which jobs own
// their quota (Standing).
//
// Ownership: refers to the snapshot, which must outlive it. Thread-safety: none; one plan owns it.
#ifndef NIBBLE_SERVER_SCHEDULER_WORLD_H_
#define NIBBLE_SERVER_SCHEDULER_WORLD_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/cluster.h"
#include "server/scheduler/place.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

// Quotas. A queue may use its quota at any time, and in addition what the other queues of its
// cohort leave idle, up to its borrow limit. Slots that a job is leaving (it checkpoints and stops)
// no longer count. A waiting job keeps a claim to quota, which jobs behind it in its queue and
// borrowers behind it in its cohort cannot use.
class Ledger {
 public:
  struct Cohort {
    std::string name;
    int64_t total = 0;    // the quotas of its queues
    int64_t used = 0;     // slots of active jobs
    int64_t claimed = 0;  // slots of jobs that wait
    int waiting = -1;     // the first job that waits for the cohort's quota
  };
  struct Account {
    const Queue* queue = nullptr;
    int cohort = -1;
    int64_t limit = 0;  // the most it may ever hold; meaningless without quota
    int64_t used = 0;
    int64_t claimed = 0;
    int64_t deferred = 0;  // slots of jobs deferred to the second round
    int claimant = -1;     // the first job that waits, for any reason
    int waiting = -1;      // the first job that waits for the queue's limit
  };

  explicit Ledger(const std::vector<Queue>& queues);

  int Find(std::string_view queue) const;  // -1: no such queue
  const Account& account(int queue) const { return accounts_[queue]; }
  const Cohort* cohort(int queue) const {
    return accounts_[queue].cohort < 0 ? nullptr : &cohorts_[accounts_[queue].cohort];
  }
  bool HasQuota(int queue) const { return accounts_[queue].queue->quota != kUnlimited; }
  size_t size() const { return accounts_.size(); }

  // Forgets claims; keeps what is used.
  void BeginPass();
  void Use(int queue, int64_t slots);  // negative: returns slots
  void Claim(int queue, int64_t slots, int job);
  // Between Defer and EndFirstRound a deferred job counts against those behind it in its queue.
  void Defer(int queue, int64_t slots) { accounts_[queue].deferred += slots; }
  void EndFirstRound();
  void WaitForQueue(int queue, int job);
  void WaitForCohort(int queue, int job);

  // Whether `slots` more are within the queue's own quota when active jobs ahead hold `ahead` and
  // all waiting jobs ahead get their slots. A queue without quota has no limit and owns nothing.
  bool Owns(int queue, int64_t ahead, int64_t slots) const;
  // By how much `slots` more exceed the queue's limit or the cohort's total; 0: they fit.
  int64_t OverQueue(int queue, int64_t slots) const;
  int64_t OverCohort(int queue, int64_t slots) const;
  // Slots that a job of the queue may grow by: 0 while any job waits for the same quota.
  int64_t RoomToGrow(int queue) const;

 private:
  std::vector<Account> accounts_;  // ascending by name
  std::vector<Cohort> cohorts_;
  absl::flat_hash_map<std::string_view, int> by_name_;
};

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A job under the plan so far. A plan changes a job at most once.
struct JobState {
  const Job* job = nullptr;
  int queue = -1;             // in the ledger; -1: no such queue
  int labels = 0;             // in the table of eligible kinds
  std::vector<int> excluded;  // nodes, ascending
  JobPhase phase = JobPhase::kQueued;
  NodePlacement active;   // promised to it, ascending by node; without unknown workers
  int size = 0;           // slots promised to it, including unknown workers
  bool stranded = false;  // has slots on lost or unknown workers: it can only stop
  int64_t end_ms = 0;     // when it is expected to end; 0: unknown

  bool changed = false;  // by this plan; the next fields say how
  Action action = Action::kStart;
  int helps = -1;  // for a victim: the job that it helps
  // For a start or resize: jobs that have not left its slots yet, ascending.
  std::vector<int> waits_for;
  std::string reason;
};

// Slots and claims. Each slot of a ready worker is in one of these states:
//   promised  to an active job, even while an earlier job still leaves it
//   soon      promised to no job, but a job that checkpoints and stops still occupies it
//   idle      free now
// `open` are the idle slots, and SoonOpen the soon slots, that no waiting job has claimed.
class World {
 public:
  World(const Snapshot& snapshot, int64_t now_ms, const Policy& policy);

  int64_t now_ms() const { return now_ms_; }
  const Policy& policy() const { return policy_; }
  const Cluster& cluster() const { return cluster_; }
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }

  // By higher priority, earlier submission, name.
  const std::vector<JobState>& jobs() const { return jobs_; }
  // All jobs; within a priority, jobs that were started before come first.
  std::vector<int> Line() const;
  JobState& job(int job) { return jobs_[job]; }
  const JobState& job(int job) const { return jobs_[job]; }
  const std::string& name(int job) const { return jobs_[job].job->name; }
  const EligibleKinds& kinds(int job) const { return eligible_[jobs_[job].labels]; }
  int label_sets() const { return eligible_.size(); }
  bool Excludes(int job, int node) const;

  FreeIndex& idle() { return idle_; }
  FreeIndex& open() { return open_; }
  // Open now or soon.
  FreeIndex& ample() { return ample_; }
  const FreeIndex& idle() const { return idle_; }
  const FreeIndex& open() const { return open_; }
  int SoonOpen(int node) const { return soon_open_[node]; }
  const std::vector<int>& soon_nodes() const {
    return soon_nodes_;
  }  // may include nodes that have none left
  int64_t SoonOpenOn(const EligibleKinds& kinds) const;

  // When the first claim on the kind's idle slots is due; kNever: no claims.
  int64_t LendUntil(int kind) const { return lend_until_[kind]; }
  // The first job that waits for slots of the kind; -1: none.
  int WaitingFor(int kind) const { return waiting_for_[kind]; }
  void WaitFor(const EligibleKinds& kinds, int job);
  // The first job with a claim to slots of the kind, including spares; -1: none.
  int ClaimedBy(int kind) const { return claimed_by_[kind]; }

  // Forgets all claims to slots and quota.
  void BeginPass();
  void ClaimOpen(int job, const NodePlacement& placement, int64_t due_ms);
  void ClaimSoon(int job, int node, int slots);

  // Promise adds idle or soon slots to the job, open ones first; Leave removes slots that the job
  // now leaves. Both update the ledger.
  void Promise(int job, const NodePlacement& slots);
  void Leave(int job, const NodePlacement& slots);

 private:
  void AddJob(const Job& job, std::vector<int>& occupied);
  void SetOpen(int node, int slots);
  void TakeSoon(int node, int slots);
  NodePlacement Resolve(const Placement& placement) const;

  const int64_t now_ms_;
  const Policy policy_;
  Cluster cluster_;
  Ledger ledger_;
  EligibleTable eligible_;
  std::vector<JobState> jobs_;
  FreeIndex idle_, open_, ample_;
  std::vector<int> promised_, soon_, soon_open_;  // by node
  std::vector<int> soon_nodes_;
  std::vector<int> touched_;  // nodes changed since the start of the pass, may contain duplicates
  std::vector<int64_t> soon_open_by_kind_;
  absl::flat_hash_map<int, std::vector<int>> leaving_;  // by node: jobs that leave it
  std::vector<int64_t> lend_until_;
  std::vector<int> waiting_for_, claimed_by_;
};

// Which jobs own their share of a queue's quota. The quota belongs to the queue's jobs by priority,
// then to jobs that were started before, then by submission: an active job owns its slots if they
// fit beside those of the owners ahead of it; otherwise it is on borrowed quota. So preempting
// borrowers never turns another job into an owner.
struct Standing {
  std::vector<int64_t> ahead;  // by job: slots of the owners ahead of it in its queue
  std::vector<bool> owns;      // by active job: whether it is an owner
  std::vector<int64_t> owned;  // by queue: slots of its owners
};

Standing FindStanding(const World& world);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_WORLD_H_

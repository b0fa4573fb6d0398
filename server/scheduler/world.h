// The cluster while a plan is made: who holds which slots, what is free, and what those who wait
// have a claim to. Each slot of a ready worker is in one of these states:
//   promised  an active job's; also while an earlier job still leaves it
//   soon      nobody's, but a job that checkpoints and stops still sits on it
//   idle      free now
// `open` are the idle slots, and SoonOpen the soon ones, that nobody who waits has claimed.
//
// Ownership: refers to the snapshot, which must outlive it. Thread-safety: none; one plan owns it.
#ifndef NIBBLE_SERVER_SCHEDULER_WORLD_H_
#define NIBBLE_SERVER_SCHEDULER_WORLD_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/cluster.h"
#include "server/scheduler/decisions.h"
#include "server/scheduler/eligible.h"
#include "server/scheduler/free_index.h"
#include "server/scheduler/ledger.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A job as the plan stands. A plan changes a job at most once.
struct JobState {
  const Job* job = nullptr;
  int queue = -1;             // in the ledger; -1: no such queue
  int labels = 0;             // in the table of eligible kinds
  std::vector<int> excluded;  // nodes, ascending
  JobPhase phase = JobPhase::kQueued;
  NodePlacement active;   // promised to it, ascending by node; on workers of the snapshot only
  int size = 0;           // slots promised to it, those on unknown workers too
  bool stranded = false;  // some are on lost or unknown workers: it can only stop, not be resized
  int64_t end_ms = 0;     // when it is expected to end; 0: unknown

  bool changed = false;  // by this plan, to:
  Action action = Action::kStart;
  int helps = -1;              // of a victim: for which job
  std::vector<int> waits_for;  // of a start or resize: who still leaves its slots, ascending
  std::string reason;
};

inline bool IsWaiting(JobPhase phase) {
  return phase == JobPhase::kQueued || phase == JobPhase::kRecovering;
}
inline bool IsActive(JobPhase phase) {
  return phase == JobPhase::kStarting || phase == JobPhase::kRunning ||
         phase == JobPhase::kResizing;
}

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
  // All jobs, within a priority those first that were started once.
  std::vector<int> Line() const;
  JobState& job(int job) { return jobs_[job]; }
  const JobState& job(int job) const { return jobs_[job]; }
  const std::string& name(int job) const { return jobs_[job].job->name; }
  const EligibleKinds& kinds(int job) const { return eligible_[jobs_[job].labels]; }
  int label_sets() const { return eligible_.size(); }
  bool Excludes(int job, int node) const;

  FreeIndex& idle() { return idle_; }
  FreeIndex& open() { return open_; }
  // What is open now or soon.
  FreeIndex& ample() { return ample_; }
  const FreeIndex& idle() const { return idle_; }
  const FreeIndex& open() const { return open_; }
  int SoonOpen(int node) const { return soon_open_[node]; }
  const std::vector<int>& soon_nodes() const { return soon_nodes_; }  // some may have none left
  int64_t SoonOpenOn(const EligibleKinds& kinds) const;

  // Until when the claims on a kind's idle slots are not due; kNever: there are none.
  int64_t LendUntil(int kind) const { return lend_until_[kind]; }
  // The first job that waits for slots of the kind; -1: nobody.
  int WaitingFor(int kind) const { return waiting_for_[kind]; }
  void WaitFor(const EligibleKinds& kinds, int job);
  // The first job with any claim to slots of the kind, spares too; -1: nobody.
  int ClaimedBy(int kind) const { return claimed_by_[kind]; }

  // Forgets all claims, of slots and of quota.
  void BeginPass();
  void ClaimOpen(int job, const NodePlacement& placement, int64_t due_ms);
  void ClaimSoon(int job, int node, int slots);

  // What is promised to a job grows by slots that are idle or soon, open ones first; shrinks by
  // slots that it now leaves. Both keep the ledger.
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
  std::vector<int> touched_;  // nodes that are not as a pass begins with them; some more than once
  std::vector<int64_t> soon_open_by_kind_;
  absl::flat_hash_map<int, std::vector<int>> leaving_;  // node: jobs that leave it
  std::vector<int64_t> lend_until_;
  std::vector<int> waiting_for_, claimed_by_;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_WORLD_H_

// Quotas while a plan is made. A queue may use its quota whenever it needs it, and beyond that what
// the other queues of its cohort leave idle, up to its borrow limit. Slots that a job leaves (it
// checkpoints and stops) no longer count. A job that waits keeps its claim to quota, so that
// those behind it in its queue, and borrowers behind it in its cohort, do not eat it up.
//
// Ownership: refers to the snapshot's queues, which must outlive it. Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_LEDGER_H_
#define NIBBLE_SERVER_SCHEDULER_LEDGER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

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
    int64_t limit = 0;  // the most that it may ever hold; meaningless without quota
    int64_t used = 0;
    int64_t claimed = 0;
    int64_t deferred = 0;  // slots of jobs put off to the second round
    int claimant = -1;     // the first job that waits, for whatever
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
  void Use(int queue, int64_t slots);  // negative: gives back
  void Claim(int queue, int64_t slots, int job);
  // Between Defer and EndFirstRound a deferred job counts against those behind it in its queue.
  void Defer(int queue, int64_t slots) { accounts_[queue].deferred += slots; }
  void EndFirstRound();
  void WaitForQueue(int queue, int job);
  void WaitForCohort(int queue, int job);

  // `slots` more would be within the queue's own quota, where active jobs ahead hold `ahead` and
  // all that wait ahead get theirs. A queue without quota has no limit and owns nothing.
  bool Owns(int queue, int64_t ahead, int64_t slots) const;
  // By how much `slots` more are over the queue's limit, over the cohort's total; 0: they fit.
  int64_t OverQueue(int queue, int64_t slots) const;
  int64_t OverCohort(int queue, int64_t slots) const;
  // Slots that a job of the queue may grow by: 0 while anybody waits for the same quota.
  int64_t RoomToGrow(int queue) const;

 private:
  std::vector<Account> accounts_;  // ascending by name
  std::vector<Cohort> cohorts_;
  absl::flat_hash_map<std::string_view, int> by_name_;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_LEDGER_H_

#include "server/scheduler/ledger.h"

#include <algorithm>
#include <limits>

namespace nibble::scheduler {

Ledger::Ledger(const std::vector<Queue>& queues) {
  for (const Queue& queue : queues) accounts_.push_back({.queue = &queue});
  std::sort(accounts_.begin(), accounts_.end(),
            [](const Account& a, const Account& b) { return a.queue->name < b.queue->name; });
  absl::flat_hash_map<std::string_view, int> cohorts;
  for (size_t i = 0; i < accounts_.size(); ++i) {
    Account& account = accounts_[i];
    by_name_.emplace(account.queue->name, static_cast<int>(i));
    if (account.queue->cohort.empty() || account.queue->quota == kUnlimited) continue;
    const auto [at, added] =
        cohorts.try_emplace(account.queue->cohort, static_cast<int>(cohorts_.size()));
    if (added) cohorts_.push_back({.name = account.queue->cohort});
    account.cohort = at->second;
    cohorts_[at->second].total += account.queue->quota;
  }
  for (Account& account : accounts_) {
    account.limit = account.queue->quota;
    if (account.cohort < 0) continue;
    account.limit = cohorts_[account.cohort].total;
    if (account.queue->borrow_limit == kUnlimited) continue;
    account.limit = std::min(account.limit, account.queue->quota + account.queue->borrow_limit);
  }
}

int Ledger::Find(std::string_view queue) const {
  const auto at = by_name_.find(queue);
  return at == by_name_.end() ? -1 : at->second;
}

void Ledger::BeginPass() {
  for (Account& account : accounts_) {
    account.claimed = account.deferred = 0;
    account.claimant = account.waiting = -1;
  }
  for (Cohort& cohort : cohorts_) {
    cohort.claimed = 0;
    cohort.waiting = -1;
  }
}

void Ledger::Use(int queue, int64_t slots) {
  accounts_[queue].used += slots;
  if (accounts_[queue].cohort >= 0) cohorts_[accounts_[queue].cohort].used += slots;
}

void Ledger::Claim(int queue, int64_t slots, int job) {
  if (accounts_[queue].claimant < 0) accounts_[queue].claimant = job;
  accounts_[queue].claimed += slots;
  if (accounts_[queue].cohort >= 0) cohorts_[accounts_[queue].cohort].claimed += slots;
}

void Ledger::EndFirstRound() {
  for (Account& account : accounts_) account.deferred = 0;
}

void Ledger::WaitForQueue(int queue, int job) {
  if (accounts_[queue].waiting < 0) accounts_[queue].waiting = job;
}

void Ledger::WaitForCohort(int queue, int job) {
  Cohort& cohort = cohorts_[accounts_[queue].cohort];
  if (cohort.waiting < 0) cohort.waiting = job;
}

bool Ledger::Owns(int queue, int64_t ahead, int64_t slots) const {
  const Account& account = accounts_[queue];
  return HasQuota(queue) &&
         ahead + account.claimed + account.deferred + slots <= account.queue->quota;
}

int64_t Ledger::OverQueue(int queue, int64_t slots) const {
  const Account& account = accounts_[queue];
  if (!HasQuota(queue)) return 0;
  return std::max<int64_t>(0, account.used + account.claimed + slots - account.limit);
}

int64_t Ledger::OverCohort(int queue, int64_t slots) const {
  const Cohort* shared = cohort(queue);
  if (shared == nullptr) return 0;
  return std::max<int64_t>(0, shared->used + shared->claimed + slots - shared->total);
}

int64_t Ledger::RoomToGrow(int queue) const {
  const Account& account = accounts_[queue];
  if (!HasQuota(queue)) return std::numeric_limits<int32_t>::max();
  if (account.waiting >= 0) return 0;
  int64_t room = account.limit - account.used - account.claimed;
  if (const Cohort* shared = cohort(queue)) {
    if (shared->waiting >= 0) return 0;
    room = std::min(room, shared->total - shared->used - shared->claimed);
  }
  return std::max<int64_t>(room, 0);
}

}  // namespace nibble::scheduler

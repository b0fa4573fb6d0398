#include "server/controller/orphan_book.h"

#include <iterator>
#include <utility>

namespace nibble {

OrphanBook::Holdings::Holdings(std::map<std::string, v1::Orphan> by_worker)
    : by_worker_(std::move(by_worker)) {
  for (const auto& [worker, orphan] : by_worker_) evidence_.push_back({worker, &orphan});
}

void OrphanBook::Take(const std::string& worker, const v1::ConnectRequest& report,
                      const v1::StoreIdentity& ours) {
  std::map<std::string, v1::Orphan> now;
  for (const v1::Orphan& orphan : report.orphans()) now[orphan.job()] = orphan;
  for (const v1::ShardReport& shard : report.shards()) {
    if (SameEpoch(shard.store(), ours)) continue;
    v1::Orphan& orphan = now[shard.ref().job()];
    if (orphan.job().empty()) {
      orphan.set_job(shard.ref().job());
      *orphan.mutable_store() = shard.store();
    }
    *orphan.add_shards() = shard;
  }
  std::lock_guard lock(mutex_);
  Erase(worker);
  for (auto& [job, orphan] : now) orphans_[job][worker] = std::move(orphan);
}

void OrphanBook::Forget(const std::string& worker) {
  std::lock_guard lock(mutex_);
  Erase(worker);
}

void OrphanBook::Erase(const std::string& worker) {
  for (auto job = orphans_.begin(); job != orphans_.end();) {
    job->second.erase(worker);
    job = job->second.empty() ? orphans_.erase(job) : std::next(job);
  }
}

OrphanBook::Holdings OrphanBook::Of(const std::string& job) const {
  std::lock_guard lock(mutex_);
  const auto found = orphans_.find(job);
  return Holdings(found == orphans_.end() ? std::map<std::string, v1::Orphan>() : found->second);
}

std::set<std::string> OrphanBook::Jobs() const {
  std::lock_guard lock(mutex_);
  std::set<std::string> jobs;
  for (const auto& [job, by_worker] : orphans_) jobs.insert(job);
  return jobs;
}

std::set<std::string> OrphanBook::JobsOn(const std::string& worker) const {
  std::lock_guard lock(mutex_);
  std::set<std::string> jobs;
  for (const auto& [job, by_worker] : orphans_) {
    if (by_worker.contains(worker)) jobs.insert(job);
  }
  return jobs;
}

int64_t OrphanBook::RunningOn(const std::string& worker, const std::string& job) const {
  std::lock_guard lock(mutex_);
  const auto by_worker = orphans_.find(job);
  if (by_worker == orphans_.end()) return 0;
  const auto orphan = by_worker->second.find(worker);
  if (orphan == by_worker->second.end() || !orphan->second.running()) return 0;
  return orphan->second.attempt();
}

std::string OrphanBook::StrayOf(const std::string& job, int64_t living) const {
  std::lock_guard lock(mutex_);
  const auto found = orphans_.find(job);
  if (found == orphans_.end()) return "";
  for (const auto& [worker, orphan] : found->second) {
    if (orphan.running() && orphan.attempt() != living) return worker;
  }
  return "";
}

std::vector<v1::ShardReport> OrphanBook::ShardsOn(const std::string& worker) const {
  std::lock_guard lock(mutex_);
  std::vector<v1::ShardReport> shards;
  for (const auto& [job, by_worker] : orphans_) {
    const auto orphan = by_worker.find(worker);
    if (orphan == by_worker.end()) continue;
    shards.insert(shards.end(), orphan->second.shards().begin(), orphan->second.shards().end());
  }
  return shards;
}

bool OrphanBook::empty() const {
  std::lock_guard lock(mutex_);
  return orphans_.empty();
}

}  // namespace nibble

#include "server/controller/live_status.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nibble {

void LiveStatus::Restart(const State& state, int64_t now_ms) {
  MutexLock lock(&mutex_);
  leases_.Restart(state, now_ms);
  none_expires_before_ms_ = 0;
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if (job.has_attempt()) unheard_[id] = job.attempt().number();
  }
}

void LiveStatus::NoteHeartbeat(const std::string& worker, int64_t incarnation, int64_t now_ms) {
  MutexLock lock(&mutex_);
  leases_.Hear(worker, incarnation, now_ms);
}

std::vector<Leases::Lease> LiveStatus::TakeExpired(int64_t now_ms) {
  MutexLock lock(&mutex_);
  if (now_ms < none_expires_before_ms_) return {};
  std::vector<Leases::Lease> expired = leases_.Expired(now_ms);
  for (const Leases::Lease& lease : expired) leases_.Drop(lease.worker);
  // Heartbeats only postpone expiries, and a new worker's is later, so nothing expires before this:
  // with many workers, a scan is worth its time only once per lease.
  none_expires_before_ms_ = leases_.NextExpiry().value_or(now_ms);
  return expired;
}

void LiveStatus::PostponeExpiries(int64_t until_ms) {
  MutexLock lock(&mutex_);
  none_expires_before_ms_ = std::max(none_expires_before_ms_, until_ms);
}

std::optional<int64_t> LiveStatus::LastHeard(const std::string& worker) const {
  MutexLock lock(&mutex_);
  return leases_.LastHeard(worker);
}

std::vector<v1::StepSample> LiveStatus::Report(const std::string& job, int64_t attempt,
                                               int64_t next_step,
                                               const std::vector<v1::StepSample>& samples) {
  MutexLock lock(&mutex_);
  Progress& progress = progress_[job];
  if (progress.live.attempt != attempt) {
    progress.live = {attempt, next_step};
    progress.rewinds = true;
  }
  progress.live.next_step = std::max(progress.live.next_step, next_step);
  std::vector<v1::StepSample> fresh;
  for (const v1::StepSample& sample : samples) {
    std::deque<Sample>& kept = progress.samples;
    if (std::exchange(progress.rewinds, false)) {
      while (!kept.empty() && kept.back()->step() >= sample.step()) kept.pop_back();
      progress.last_is_extra = false;
    }
    if (!kept.empty() && sample.step() <= kept.back()->step()) continue;
    if (progress.last_is_extra) kept.pop_back();
    kept.push_back(std::make_shared<const v1::StepSample>(sample));
    progress.last_is_extra = progress.seen++ % progress.stride != 0;
    fresh.push_back(sample);
    if (kept.size() <= kMaxSamples) continue;
    std::deque<Sample> half;
    for (size_t i = 0; i < kept.size(); i += 2) half.push_back(std::move(kept[i]));
    kept = std::move(half);
    progress.stride *= 2;
  }
  return fresh;
}

LiveProgress LiveStatus::ProgressOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = progress_.find(job);
  LiveProgress live = found == progress_.end() ? LiveProgress{} : found->second.live;
  const auto unheard = unheard_.find(job);
  if (unheard != unheard_.end() && unheard->second >= live.attempt) {
    live.attempt = unheard->second;
    live.unheard = true;
  }
  return live;
}

double LiveStatus::StepSecondsOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = progress_.find(job);
  if (found == progress_.end() || found->second.samples.empty()) return 0;
  return found->second.samples.back()->step_seconds();
}

void LiveStatus::NoteRank0(const std::string& job, int64_t attempt) {
  MutexLock lock(&mutex_);
  const auto unheard = unheard_.find(job);
  if (unheard != unheard_.end() && attempt >= unheard->second) unheard_.erase(unheard);
}

std::vector<LiveStatus::Sample> LiveStatus::SamplesOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = progress_.find(job);
  if (found == progress_.end()) return {};
  return {found->second.samples.begin(), found->second.samples.end()};
}

void LiveStatus::ReportRanks(const std::string& worker, const v1::GangReport& gang) {
  MutexLock lock(&mutex_);
  Progress& progress = progress_[gang.job()];
  if (gang.attempt() < progress.ranks_attempt) return;
  if (gang.attempt() > progress.ranks_attempt) {
    progress.ranks_attempt = gang.attempt();
    progress.ranks.clear();
  }
  for (const v1::RankHealth& rank : gang.ranks()) {
    v1::RankPace& pace = progress.ranks[rank.rank()];
    pace.set_rank(rank.rank());
    pace.set_worker(worker);
    pace.set_next_step(rank.next_step());
    pace.set_work_seconds(rank.work_seconds());
    pace.set_since_step_ms(rank.since_step_ms());
    pace.set_waiting_in(rank.waiting_in());
  }
  if (gang.has_precision()) progress.precision = gang.precision();
}

std::vector<v1::RankPace> LiveStatus::RanksOf(const std::string& job, int64_t attempt) const {
  MutexLock lock(&mutex_);
  const auto found = progress_.find(job);
  std::vector<v1::RankPace> ranks;
  if (found == progress_.end() || found->second.ranks_attempt != attempt) return ranks;
  for (const auto& [number, pace] : found->second.ranks) ranks.push_back(pace);
  return ranks;
}

std::optional<v1::PrecisionSummary> LiveStatus::PrecisionOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = progress_.find(job);
  return found == progress_.end() ? std::nullopt : found->second.precision;
}

void LiveStatus::Forget(const std::string& job) {
  MutexLock lock(&mutex_);
  progress_.erase(job);
  unheard_.erase(job);
}

void LiveStatus::SetPending(std::map<std::string, std::string> reasons) {
  MutexLock lock(&mutex_);
  pending_.swap(reasons);  // the old ones are freed without the lock
}

std::string LiveStatus::PendingOf(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = pending_.find(job);
  return found == pending_.end() ? "" : found->second;
}

OrphanRegistry::Holdings::Holdings(std::map<std::string, v1::Orphan> by_worker)
    : by_worker_(std::move(by_worker)) {
  for (const auto& [worker, orphan] : by_worker_) evidence_.push_back({worker, &orphan});
}

void OrphanRegistry::Replace(
    const std::string& worker, const v1::ConnectRequest& report, const v1::StoreIdentity& ours,
    const std::function<bool(const std::string& job, const v1::StoreIdentity& store)>& believes) {
  std::map<std::string, v1::Orphan> now;
  for (const v1::Orphan& orphan : report.orphans()) {
    if (believes(orphan.job(), orphan.store())) now[orphan.job()] = orphan;
  }
  for (const v1::ShardReport& shard : report.shards()) {
    if (SameEpoch(shard.store(), ours) || !believes(shard.ref().job(), shard.store())) continue;
    v1::Orphan& orphan = now[shard.ref().job()];
    if (orphan.job().empty()) {
      orphan.set_job(shard.ref().job());
      *orphan.mutable_store() = shard.store();
    }
    *orphan.add_shards() = shard;
  }
  Ranks ranks;
  for (const v1::GangReport& gang : report.gangs()) {
    ranks[{gang.job(), gang.attempt()}] = gang.ranks_size();
  }
  MutexLock lock(&mutex_);
  Erase(worker);
  if (!now.empty()) ranks_[worker] = std::move(ranks);
  for (auto& [job, orphan] : now) orphans_[job][worker] = std::move(orphan);
}

void OrphanRegistry::Forget(const std::string& worker) {
  MutexLock lock(&mutex_);
  Erase(worker);
}

void OrphanRegistry::Erase(const std::string& worker) {
  ranks_.erase(worker);
  for (auto job = orphans_.begin(); job != orphans_.end();) {
    job->second.erase(worker);
    job = job->second.empty() ? orphans_.erase(job) : std::next(job);
  }
}

OrphanRegistry::Holdings OrphanRegistry::Of(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto found = orphans_.find(job);
  return Holdings(found == orphans_.end() ? std::map<std::string, v1::Orphan>() : found->second);
}

std::set<std::string> OrphanRegistry::Jobs() const {
  MutexLock lock(&mutex_);
  std::set<std::string> jobs;
  for (const auto& [job, by_worker] : orphans_) jobs.insert(job);
  return jobs;
}

std::set<std::string> OrphanRegistry::JobsOn(const std::string& worker) const {
  MutexLock lock(&mutex_);
  std::set<std::string> jobs;
  for (const auto& [job, by_worker] : orphans_) {
    if (by_worker.contains(worker)) jobs.insert(job);
  }
  return jobs;
}

int64_t OrphanRegistry::RunningOn(const std::string& worker, const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto by_worker = orphans_.find(job);
  if (by_worker == orphans_.end()) return 0;
  const auto orphan = by_worker->second.find(worker);
  if (orphan == by_worker->second.end() || !orphan->second.running()) return 0;
  return orphan->second.attempt();
}

std::optional<int64_t> OrphanRegistry::RanksOf(const std::string& job, int64_t attempt) const {
  MutexLock lock(&mutex_);
  const auto by_worker = orphans_.find(job);
  if (by_worker == orphans_.end()) return 0;
  int64_t count = 0;
  for (const auto& [worker, orphan] : by_worker->second) {
    if (!orphan.running() || orphan.attempt() != attempt) continue;
    const Ranks& ranks = ranks_.at(worker);
    const auto of_attempt = ranks.find({job, attempt});
    if (of_attempt == ranks.end()) return std::nullopt;
    count += of_attempt->second;
  }
  return count;
}

std::string OrphanRegistry::StrayOf(const std::string& job, int64_t living, Owns owns) const {
  MutexLock lock(&mutex_);
  const auto found = orphans_.find(job);
  if (found == orphans_.end()) return "";
  for (const auto& [worker, orphan] : found->second) {
    if (orphan.running() && orphan.attempt() != living && owns(orphan.store())) return worker;
  }
  return "";
}

std::map<std::string, OrphanRegistry::Namesake> OrphanRegistry::NamesakesOf(const std::string& job,
                                                                            Owns owns) const {
  MutexLock lock(&mutex_);
  std::map<std::string, Namesake> namesakes;
  const auto found = orphans_.find(job);
  if (found == orphans_.end()) return namesakes;
  for (const auto& [worker, orphan] : found->second) {
    if (owns(orphan.store()) || (!orphan.running() && orphan.shards().empty())) continue;
    namesakes[worker] = {.store = orphan.store().id(), .running = orphan.running()};
  }
  return namesakes;
}

std::vector<v1::ShardReport> OrphanRegistry::ShardsOn(const std::string& worker) const {
  MutexLock lock(&mutex_);
  std::vector<v1::ShardReport> shards;
  for (const auto& [job, by_worker] : orphans_) {
    const auto orphan = by_worker.find(worker);
    if (orphan == by_worker.end()) continue;
    shards.insert(shards.end(), orphan->second.shards().begin(), orphan->second.shards().end());
  }
  return shards;
}

bool OrphanRegistry::empty() const {
  MutexLock lock(&mutex_);
  return orphans_.empty();
}

}  // namespace nibble

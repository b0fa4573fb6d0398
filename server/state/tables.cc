#include "server/state/tables.h"

#include <algorithm>
#include <utility>

#include "server/state/entities.h"

namespace nibble {
namespace {

using Names = Index::Names;
using Sets = PersistentMap<std::string, Names>;

const Names& FindNames(const Sets& sets, absl::string_view key) {
  static const auto* const kNone = new Names;
  const auto* const found = sets.Find(key);
  return found == nullptr ? *kNone : found->second;
}

void Insert(Sets& sets, const std::string& key, const std::string& name) {
  Names names = FindNames(sets, key);
  names.Insert(name);
  sets.Put(key, std::move(names));
}

void Erase(Sets& sets, const std::string& key, const std::string& name) {
  Names names = FindNames(sets, key);
  names.Erase(name);
  if (names.empty()) {
    sets.Erase(key);
  } else {
    sets.Put(key, std::move(names));
  }
}

}  // namespace

void Index::Add(const std::string&, const v1::JobRecord& job) {
  jobs_.Put(job.number(), job.id());
  if (HasUnsettled(job)) unsettled_.Insert(job.id());
  if (IsFinished(job.state())) {
    finished_.Put(std::pair(job.finished_unix_ms(), job.number()), job.id());
    return;
  }
  unfinished_.Put(job.number(), job.id());
  for (const v1::Placement& placement : job.attempt().placements()) {
    Insert(gangs_, placement.worker(), job.id());
  }
  if (job.has_origin()) Insert(forks_, CheckpointKey(job.origin().checkpoint()), job.id());
}

void Index::Remove(const std::string&, const v1::JobRecord& job) {
  jobs_.Erase(job.number());
  if (HasUnsettled(job)) unsettled_.Erase(job.id());
  if (IsFinished(job.state())) {
    finished_.Erase(std::pair(job.finished_unix_ms(), job.number()));
    return;
  }
  unfinished_.Erase(job.number());
  for (const v1::Placement& placement : job.attempt().placements()) {
    Erase(gangs_, placement.worker(), job.id());
  }
  if (job.has_origin()) Erase(forks_, CheckpointKey(job.origin().checkpoint()), job.id());
}

void Index::Add(const std::string& key, const v1::CheckpointShard& shard) {
  for (const std::string& holder : shard.holders()) Insert(shards_, holder, key);
}

void Index::Remove(const std::string& key, const v1::CheckpointShard& shard) {
  for (const std::string& holder : shard.holders()) Erase(shards_, holder, key);
}

void Index::Add(const std::string&, const v1::RequestRecord& request) {
  requests_.Put(request.sequence(), RequestKey(request.author(), request.request_id()));
}

void Index::Remove(const std::string&, const v1::RequestRecord& request) {
  requests_.Erase(request.sequence());
}

const Names& Index::GangsOn(absl::string_view worker) const { return FindNames(gangs_, worker); }

const Names& Index::ForksOf(absl::string_view checkpoint_key) const {
  return FindNames(forks_, checkpoint_key);
}

const Names& Index::ShardsOn(absl::string_view worker) const { return FindNames(shards_, worker); }

Draft::Draft(const Tables& tables, const Index& index)
    : head(tables.head),
      cluster(tables.cluster),
      jobs(tables.jobs),
      specs(tables.specs),
      timelines(tables.timelines),
      events(tables.events),
      workers(tables.workers),
      queues(tables.queues),
      checkpoints(tables.checkpoints),
      shards(tables.shards),
      requests(tables.requests),
      archive(tables.archive),
      removals(tables.removals),
      deletions(tables.deletions),
      before_(index) {}

std::set<std::string> Draft::GangsOn(absl::string_view worker) const {
  const Index::Names& before = before_.GangsOn(worker);
  std::set<std::string> gangs(before.begin(), before.end());
  for (const auto& [id, job] : jobs.changes()) {
    gangs.erase(id);
    if (job == nullptr) continue;
    for (const v1::Placement& placement : job->attempt().placements()) {
      if (placement.worker() == worker) gangs.insert(id);
    }
  }
  return gangs;
}

bool Draft::AnyUnfinishedIn(absl::string_view queue) const {
  const auto is_in = [queue](const v1::JobRecord* job) {
    return job != nullptr && !IsFinished(job->state()) && job->scheduling().queue() == queue;
  };
  for (const auto& [id, job] : jobs.changes()) {
    if (is_in(job.get())) return true;
  }
  return std::any_of(before_.unfinished().begin(), before_.unfinished().end(),
                     [&](const auto& entry) { return is_in(jobs.Find(entry.second)); });
}

int64_t Draft::UnfinishedJobs() const {
  auto count = static_cast<int64_t>(before_.unfinished().size());
  for (const auto& [id, job] : jobs.changes()) {
    if (job == nullptr) continue;
    const bool was = before_.unfinished().contains(job->number());
    count += (IsFinished(job->state()) ? 0 : 1) - (was ? 1 : 0);
  }
  return count;
}

bool Draft::AnyForkOf(absl::string_view checkpoint_key) const {
  for (const std::string& id : before_.ForksOf(checkpoint_key)) {
    const v1::JobRecord* const job = jobs.Find(id);
    if (job != nullptr && !IsFinished(job->state())) return true;
  }
  for (const auto& [id, job] : jobs.changes()) {
    if (job != nullptr && !IsFinished(job->state()) && job->has_origin() &&
        CheckpointKey(job->origin().checkpoint()) == checkpoint_key) {
      return true;
    }
  }
  return false;
}

const v1::Checkpoint* Draft::NewestGood(absl::string_view job) const {
  const auto all = checkpoints.WithPrefix(JobPrefix(job));
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    const v1::Checkpoint& checkpoint = *entry->second;
    if (checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED && !checkpoint.left()) {
      return &checkpoint;
    }
  }
  return nullptr;
}

const v1::Checkpoint* Draft::NewestWhole(absl::string_view job) const {
  const auto is_present = [this](const std::string& holder) {
    const v1::WorkerRecord* const worker = workers.Find(holder);
    return worker != nullptr && worker->present();
  };
  const auto is_whole = [&](const v1::Checkpoint& checkpoint) {
    const auto all = shards.WithPrefix(ShardPrefix(checkpoint.ref()));
    return static_cast<int32_t>(all.size()) == checkpoint.world() &&
           std::all_of(all.begin(), all.end(), [&](const auto& entry) {
             const auto& holders = entry.second->holders();
             return std::any_of(holders.begin(), holders.end(), is_present);
           });
  };
  const v1::ClusterRecord* const present = cluster.Find(kOnlyKey);
  const std::string epoch = present == nullptr ? "" : present->store().epoch_id();
  const auto all = checkpoints.WithPrefix(JobPrefix(job));
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    const v1::Checkpoint& checkpoint = *entry->second;
    if (checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED && !checkpoint.left() &&
        checkpoint.epoch_id() == epoch && is_whole(checkpoint)) {
      return &checkpoint;
    }
  }
  return nullptr;
}

const v1::Checkpoint* Draft::OriginOf(const v1::JobRecord& job) const {
  if (!job.has_origin()) return nullptr;
  if (job.origin().weights_only()) {
    const auto own = checkpoints.WithPrefix(JobPrefix(job.id()));
    const bool begun = std::any_of(own.begin(), own.end(), [](const auto& entry) {
      return entry.second->state() != v1::CHECKPOINT_STATE_WRITING && !entry.second->left();
    });
    if (begun) return nullptr;
  }
  return checkpoints.Find(CheckpointKey(job.origin().checkpoint()));
}

const v1::Checkpoint* Draft::ResumeOf(const v1::JobRecord& job) const {
  const v1::Checkpoint* const own = NewestGood(job.id());
  return own != nullptr ? own : OriginOf(job);
}

int64_t Draft::EarliestStep(const v1::JobRecord& job) const {
  const bool forked = job.has_origin() && !job.origin().weights_only();
  const int64_t began = forked ? job.origin().checkpoint().step() : 0;
  if (job.has_attempt()) return std::max(began, FirstStep(job));
  const v1::Checkpoint* const own = NewestGood(job.id());
  return std::max(began, own == nullptr ? 0 : own->ref().step());
}

int64_t Draft::NeededStep(const v1::JobRecord& job) const {
  const int64_t earliest = EarliestStep(job);
  if (!job.has_attempt()) return earliest;
  const v1::Checkpoint* const newest = NewestGood(job.id());
  const bool of_it = newest != nullptr && newest->ref().attempt() == job.attempt().number();
  return of_it ? std::max(earliest, newest->ref().step()) : earliest;
}

}  // namespace nibble

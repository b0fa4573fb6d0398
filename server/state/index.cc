#include "server/state/index.h"

#include <utility>

#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/notify_events.h"

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

}  // namespace nibble

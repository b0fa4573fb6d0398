#include "server/state/index.h"

#include "server/state/job_machine.h"
#include "server/state/keys.h"

namespace nibble {
namespace {

using Sets = std::map<std::string, std::set<std::string>, std::less<>>;

void Erase(Sets& sets, const std::string& key, const std::string& value) {
  const auto found = sets.find(key);
  if (found == sets.end()) return;
  found->second.erase(value);
  if (found->second.empty()) sets.erase(found);
}

const std::set<std::string>& FindSet(const Sets& sets, absl::string_view key) {
  static const auto* const kNone = new std::set<std::string>;
  const auto found = sets.find(key);
  return found == sets.end() ? *kNone : found->second;
}

}  // namespace

void Index::Add(const v1::JobRecord& job) {
  if (IsFinished(job.state())) {
    finished_.emplace(std::pair(job.finished_unix_ms(), job.number()), job.id());
    return;
  }
  unfinished_.emplace(job.number(), job.id());
  for (const v1::Placement& placement : job.attempt().placements()) {
    gangs_[placement.worker()].insert(job.id());
  }
  if (job.has_origin()) forks_[CheckpointKey(job.origin().checkpoint())].insert(job.id());
}

void Index::Remove(const v1::JobRecord& job) {
  if (IsFinished(job.state())) {
    finished_.erase(std::pair(job.finished_unix_ms(), job.number()));
    return;
  }
  unfinished_.erase(job.number());
  for (const v1::Placement& placement : job.attempt().placements()) {
    Erase(gangs_, placement.worker(), job.id());
  }
  if (job.has_origin()) Erase(forks_, CheckpointKey(job.origin().checkpoint()), job.id());
}

void Index::Add(const v1::CheckpointShard& shard) {
  for (const std::string& holder : shard.holders()) ++shards_[holder];
}

void Index::Remove(const v1::CheckpointShard& shard) {
  for (const std::string& holder : shard.holders()) {
    if (--shards_[holder] == 0) shards_.erase(holder);
  }
}

void Index::Add(const v1::RequestRecord& request) {
  requests_.emplace(request.sequence(), RequestKey(request.author(), request.request_id()));
}

void Index::Remove(const v1::RequestRecord& request) { requests_.erase(request.sequence()); }

const std::set<std::string>& Index::GangsOn(absl::string_view worker) const {
  return FindSet(gangs_, worker);
}

const std::set<std::string>& Index::ForksOf(absl::string_view checkpoint_key) const {
  return FindSet(forks_, checkpoint_key);
}

int64_t Index::ShardsOn(absl::string_view worker) const {
  const auto found = shards_.find(worker);
  return found == shards_.end() ? 0 : found->second;
}

}  // namespace nibble

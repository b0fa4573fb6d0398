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

void Index::Add(const std::string&, const v1::JobRecord& job) {
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

void Index::Remove(const std::string&, const v1::JobRecord& job) {
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

void Index::Add(const std::string& key, const v1::CheckpointShard& shard) {
  for (const std::string& holder : shard.holders()) shards_[holder].insert(key);
}

void Index::Remove(const std::string& key, const v1::CheckpointShard& shard) {
  for (const std::string& holder : shard.holders()) Erase(shards_, holder, key);
}

void Index::Add(const std::string&, const v1::RequestRecord& request) {
  requests_.emplace(request.sequence(), RequestKey(request.author(), request.request_id()));
}

void Index::Remove(const std::string&, const v1::RequestRecord& request) {
  requests_.erase(request.sequence());
}

const std::set<std::string>& Index::GangsOn(absl::string_view worker) const {
  return FindSet(gangs_, worker);
}

const std::set<std::string>& Index::ForksOf(absl::string_view checkpoint_key) const {
  return FindSet(forks_, checkpoint_key);
}

const std::set<std::string>& Index::ShardsOn(absl::string_view worker) const {
  return FindSet(shards_, worker);
}

}  // namespace nibble

#include "server/controller/trash_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

// Calls f for each entry whose key has the prefix.
template <class Map, class F>
void ForPrefix(const Map& map, const std::string& prefix, F f) {
  for (auto at = map.lower_bound(prefix); at != map.end() && absl::StartsWith(at->first, prefix);
       ++at) {
    f(*at);
  }
}

v1::ShardReport ShardOf(const v1::TrashedShard& trashed) {
  v1::ShardReport shard;
  *shard.mutable_ref() = trashed.ref();
  shard.set_rank(trashed.rank());
  shard.set_world(trashed.world());
  shard.set_bytes(trashed.bytes());
  shard.set_manifest_crc32c(trashed.manifest_crc32c());
  *shard.mutable_store() = trashed.store();
  return shard;
}

}  // namespace

void TrashRegistry::SetTrash(const v1::ConnectRequest& report, Holding& holding) {
  std::vector<const v1::TrashedShard*> trash;
  for (const v1::TrashedShard& shard : report.trash()) {
    holding.trash_bytes += shard.bytes();
    // A '/' in a name would make the key another job's.
    if (CheckName("job", shard.ref().job()).ok()) trash.push_back(&shard);
  }
  if (trash.size() > kMaxTrashedShards) {
    std::nth_element(trash.begin(), trash.begin() + kMaxTrashedShards, trash.end(),
                     [](const auto* a, const auto* b) { return a->age_ms() < b->age_ms(); });
    trash.resize(kMaxTrashedShards);
  }
  std::sort(trash.begin(), trash.end(),
            [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  for (const v1::TrashedShard* shard : trash) {
    holding.trash[CheckpointKey(shard->ref())].push_back(*shard);
  }
}

void TrashRegistry::Take(const std::string& worker, const v1::ConnectRequest& report,
                         IsLoose is_loose) {
  Holding fresh;
  if (report.all_shards()) SetTrash(report, fresh);
  const auto add = [&](const v1::ShardReport& shard) {
    if (std::ssize(fresh.stored) < kMaxTrashedShards && is_loose(shard)) {
      fresh.stored[ShardKey(shard.ref(), shard.rank())] = shard;
    }
  };
  for (const v1::ShardReport& shard : report.shards()) add(shard);
  for (const v1::Orphan& orphan : report.orphans()) {
    for (const v1::ShardReport& shard : orphan.shards()) add(shard);
  }
  MutexLock lock(&mutex_);
  Holding& holding = holdings_[worker];
  if (!report.all_shards()) {
    fresh.stored.merge(std::move(holding.stored));
    std::swap(fresh.trash, holding.trash);
    fresh.trash_bytes = holding.trash_bytes;
  }
  // Again, under the lock: after NoteDropped a stale report does not bring a shard back.
  std::erase_if(fresh.stored, [&](const auto& entry) { return !is_loose(entry.second); });
  holding = std::move(fresh);
}

void TrashRegistry::NoteDropped(const std::string& worker, const v1::CheckpointRef& ref,
                                int32_t rank) {
  MutexLock lock(&mutex_);
  const auto holding = holdings_.find(worker);
  if (holding != holdings_.end()) holding->second.stored.erase(ShardKey(ref, rank));
}

void TrashRegistry::Forget(const std::string& worker) {
  MutexLock lock(&mutex_);
  holdings_.erase(worker);
}

std::vector<LooseShard> TrashRegistry::Of(const std::string& job) const {
  std::vector<LooseShard> found;
  MutexLock lock(&mutex_);
  for (const auto& [worker, holding] : holdings_) {
    ForPrefix(holding.trash, JobPrefix(job), [&, &name = worker](const auto& entry) {
      for (const v1::TrashedShard& shard : entry.second) {
        found.push_back({.worker = name, .shard = ShardOf(shard), .trashed = true});
      }
    });
    ForPrefix(holding.stored, JobPrefix(job), [&, &name = worker](const auto& entry) {
      found.push_back({.worker = name, .shard = entry.second});
    });
  }
  return found;
}

std::set<std::string> TrashRegistry::StoredJobs(const std::string& worker) const {
  std::set<std::string> jobs;
  MutexLock lock(&mutex_);
  const auto holding = holdings_.find(worker);
  if (holding == holdings_.end()) return jobs;
  for (const auto& [key, shard] : holding->second.stored) jobs.insert(shard.ref().job());
  return jobs;
}

std::vector<v1::CheckpointRef> TrashRegistry::TrashOn(const std::string& worker) const {
  std::vector<v1::CheckpointRef> refs;
  MutexLock lock(&mutex_);
  const auto holding = holdings_.find(worker);
  if (holding == holdings_.end()) return refs;
  for (const auto& [key, shards] : holding->second.trash) refs.push_back(shards.front().ref());
  return refs;
}

int64_t TrashRegistry::TrashBytes(const std::string& worker) const {
  MutexLock lock(&mutex_);
  const auto holding = holdings_.find(worker);
  return holding == holdings_.end() ? 0 : holding->second.trash_bytes;
}

std::map<std::string, TrashRegistry::ByWorker> TrashRegistry::Trash(const std::string& job) const {
  std::map<std::string, ByWorker> all;
  MutexLock lock(&mutex_);
  for (const auto& [worker, holding] : holdings_) {
    ForPrefix(holding.trash, job.empty() ? "" : JobPrefix(job),
              [&, &name = worker](const auto& at) { all[at.first][name] = at.second; });
  }
  return all;
}

}  // namespace nibble

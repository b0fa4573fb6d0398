// What peers, gangs and tasks ask of the desk: reading what is here, and copies.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/shard_report.h"

namespace nibble {
namespace {

absl::Status NothingOf(const std::string& job) {
  return absl::NotFoundError(absl::StrCat("checkpoint: nothing of job '", job, "' is here"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointDesk::Open(
    const v1::CheckpointRef& ref) const {
  CheckpointStore* const store = FindStore(ref.job(), nullptr);
  if (store == nullptr) return NothingOf(ref.job());
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  auto reader = store->OpenCheckpoint(ref.step());
  if (reader.ok() && (*reader)->manifest().header.attempt != ref.attempt()) {
    return absl::NotFoundError(absl::StrCat("checkpoint: of step ", ref.step(), " attempt ",
                                            (*reader)->manifest().header.attempt, " is here, not ",
                                            ref.attempt()));
  }
  return reader;
}

absl::StatusOr<std::unique_ptr<ShardReader>> CheckpointDesk::OpenShard(const v1::CheckpointRef& ref,
                                                                       int32_t rank) const {
  CheckpointStore* const store = FindStore(ref.job(), nullptr);
  if (store == nullptr) return NothingOf(ref.job());
  // A commit moves its files, and while they are looked for that would pass for damage.
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  return store->OpenShard(ref.step(), ref.attempt(), rank);
}

absl::StatusOr<CheckpointHeader> CheckpointDesk::HeaderOf(const v1::CheckpointRef& ref) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = shelf_.find(KeyOf(ref));
  if (at == shelf_.end()) return NothingOf(ref.job());
  return at->second.header;
}

absl::StatusOr<uint32_t> CheckpointDesk::CrcOf(const v1::CheckpointRef& ref, int32_t rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = shelf_.find(KeyOf(ref));
  if (at == shelf_.end()) return NothingOf(ref.job());
  const auto shard = at->second.shards.find(rank);
  if (shard == at->second.shards.end()) {
    return absl::NotFoundError(absl::StrCat("rank: the shard of ", rank, " of step ", ref.step(),
                                            ", attempt ", ref.attempt(), " is not here"));
  }
  return shard->second.report.manifest_crc32c();
}

CheckpointDesk::Lease CheckpointDesk::Keep(const v1::CheckpointRef& ref) {
  const Key key = KeyOf(ref);
  {
    // Not in the middle of a removal.
    const std::lock_guard<std::mutex> surgery(surgery_mutex_);
    const std::lock_guard<std::mutex> lock(mutex_);
    ++leases_[key];
  }
  return Lease(this, [this, key](const void*) { Release(key); });
}

void CheckpointDesk::Release(const Key& key) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--leases_[key] > 0) return;
    leases_.erase(key);
    const auto at = shelf_.find(key);
    if (at == shelf_.end() || !at->second.input) return;
    for (const auto& [rank, shard] : at->second.shards) to_drop_[key].insert(rank);
  }
  todo_changed_.notify_all();
}

void CheckpointDesk::Accept(const v1::CheckpointRef& ref) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(KeyOf(ref));
    if (at == shelf_.end()) return;
    for (auto& [rank, shard] : at->second.shards) shard.accepted = true;
    to_settle_.insert(at->first);
  }
  todo_changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointDesk::BeginCopy(
    const std::string& job, const ShardManifest& original) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  CheckpointStore* const store = FindStore(job, nullptr);
  if (store == nullptr) return NothingOf(job);
  const Key key = {job, original.step, original.attempt};
  bool committed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    committed = at != shelf_.end() && at->second.committed;
  }
  if (committed) {
    if (absl::Status status = ReopenHere(key); !status.ok()) return status;
  }
  return store->BeginCopy(original);
}

absl::Status CheckpointDesk::TakeCopy(const std::string& job, const CheckpointHeader& header,
                                      const ShardManifest& sealed, bool input) {
  {
    const std::lock_guard<std::mutex> surgery(surgery_mutex_);
    const Key key = {job, sealed.step, sealed.attempt};
    if (header.step != sealed.step || header.attempt != sealed.attempt ||
        sealed.rank >= header.world) {
      return absl::InvalidArgumentError(
          absl::StrCat("header: of step ", header.step, ", attempt ", header.attempt, ", world ",
                       header.world, "; the shard of rank ", sealed.rank, " is of step ",
                       sealed.step, ", attempt ", sealed.attempt));
    }
    bool known = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      known = shelf_.contains(key);
    }
    v1::StoreIdentity store;
    if (options_.followed && !input) store = options_.followed();
    if (!known) {
      if (absl::Status noted = WriteStore(key, store); !noted.ok()) return noted;
      if (absl::Status noted = WriteHeader(job, header); !noted.ok()) return noted;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = shelf_[key];
    if (!known) {
      entry.header = header;
      entry.store = store;
    }
    entry.input = input && (!known || entry.input);
    entry.shards[sealed.rank] = {.report = ShardReportOf(job, sealed, entry.header.world),
                                 .accepted = input};
  }
  if (options_.changed) options_.changed();
  return absl::OkStatus();
}

absl::Status CheckpointDesk::RemoveDamaged(const v1::CheckpointRef& ref, int32_t rank) {
  absl::Status status;
  {
    const std::lock_guard<std::mutex> surgery(surgery_mutex_);
    const Key key = KeyOf(ref);
    CheckpointStore* const store = FindStore(ref.job(), nullptr);
    bool committed = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto at = shelf_.find(key);
      if (store == nullptr || at == shelf_.end()) return NothingOf(ref.job());
      committed = at->second.committed;
    }
    if (committed) status = ReopenHere(key);
    if (status.ok()) status = store->DiscardShard(ref.step(), ref.attempt(), rank);
    if (absl::IsNotFound(status)) status = absl::OkStatus();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok()) shelf_.at(key).shards.erase(rank);
  }
  if (options_.changed) options_.changed();
  return status;
}

absl::Status CheckpointDesk::MakeLoadable(const v1::CheckpointRef& ref) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  const Key key = KeyOf(ref);
  std::vector<Key> in_the_way;
  bool committed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    if (at == shelf_.end()) return NothingOf(ref.job());
    const Entry& entry = at->second;
    std::vector<int32_t> missing;
    for (int32_t rank = 0; rank < entry.header.world; ++rank) {
      if (!entry.shards.contains(rank) && missing.size() < 3) missing.push_back(rank);
    }
    if (!missing.empty()) {
      return absl::NotFoundError(
          absl::StrCat("checkpoint of step ", ref.step(), ", attempt ", ref.attempt(), ": of ",
                       entry.header.world, " shards ", entry.header.world - entry.shards.size(),
                       " are not here, rank ", absl::StrJoin(missing, ", "), " first"));
    }
    committed = entry.committed;
    for (const auto& [other, its] : shelf_) {
      if (other != key && its.committed && std::get<0>(other) == ref.job() &&
          std::get<1>(other) == ref.step()) {
        in_the_way.push_back(other);
      }
    }
  }
  // They stay, sealed: only their name goes.
  for (const Key& other : in_the_way) {
    if (absl::Status status = ReopenHere(other); !status.ok()) return status;
  }
  return committed ? absl::OkStatus() : CommitHere(key);
}

}  // namespace nibble

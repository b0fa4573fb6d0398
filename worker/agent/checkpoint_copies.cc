// Reading the checkpoints of CheckpointRegistry, and storing replicas from other workers.

#include "worker/agent/checkpoint_registry.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/crc32c.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

absl::Status NothingOf(const std::string& job) {
  return absl::NotFoundError(absl::StrCat("checkpoint: nothing of job '", job, "' is here"));
}

}  // namespace

std::string ShardManifestBytes(const ShardManifest& shard) {
  ShardManifest tensors = shard;
  tensors.files.clear();
  std::string record = EncodeShard(tensors);
  record.resize(record.size() - sizeof(uint32_t));
  return record;
}

uint32_t ShardManifestCrc(const ShardManifest& shard) { return CrcOf(ShardManifestBytes(shard)); }

absl::StatusOr<ShardManifest> ShardManifestFrom(const std::string& bytes) {
  std::string record = bytes;
  const uint32_t crc = CrcOf(bytes);
  for (size_t i = 0; i < sizeof crc; ++i) record.push_back(static_cast<char>(crc >> (8 * i)));
  return DecodeShard(record);
}

v1::ShardReport ShardReportOf(const std::string& job, const ShardManifest& shard, int32_t world) {
  v1::ShardReport report;
  report.mutable_ref()->set_job(job);
  report.mutable_ref()->set_step(shard.step);
  report.mutable_ref()->set_attempt(shard.attempt);
  report.set_rank(shard.rank);
  report.set_world(world);
  report.set_bytes(shard.bytes());
  report.set_manifest_crc32c(ShardManifestCrc(shard));
  return report;
}

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointRegistry::Open(
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

absl::StatusOr<std::unique_ptr<ShardReader>> CheckpointRegistry::OpenShard(
    const v1::CheckpointRef& ref, int32_t rank) const {
  CheckpointStore* const store = FindStore(ref.job(), nullptr);
  if (store == nullptr) return NothingOf(ref.job());
  // A concurrent commit moves the files, which would look like damage.
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  return store->OpenShard(ref.step(), ref.attempt(), rank);
}

absl::StatusOr<CheckpointHeader> CheckpointRegistry::HeaderOf(const v1::CheckpointRef& ref) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = entries_.find(KeyOf(ref));
  if (at == entries_.end()) return NothingOf(ref.job());
  return at->second.header;
}

absl::StatusOr<uint32_t> CheckpointRegistry::CrcOf(const v1::CheckpointRef& ref,
                                                   int32_t rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = entries_.find(KeyOf(ref));
  if (at == entries_.end()) return NothingOf(ref.job());
  const auto shard = at->second.shards.find(rank);
  if (shard == at->second.shards.end()) {
    return absl::NotFoundError(absl::StrCat("rank: the shard of ", rank, " of step ", ref.step(),
                                            ", attempt ", ref.attempt(), " is not here"));
  }
  return shard->second.report.manifest_crc32c();
}

CheckpointRegistry::Lease CheckpointRegistry::Keep(const v1::CheckpointRef& ref) {
  const Key key = KeyOf(ref);
  {
    // Not in the middle of a removal.
    const std::lock_guard<std::mutex> surgery(surgery_mutex_);
    const std::lock_guard<std::mutex> lock(mutex_);
    ++leases_[key];
  }
  return Lease(this, [this, key](const void*) { Release(key); });
}

void CheckpointRegistry::Release(const Key& key) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--leases_[key] > 0) return;
    leases_.erase(key);
    const auto at = entries_.find(key);
    if (at == entries_.end() || !at->second.input) return;
    for (const auto& [rank, shard] : at->second.shards) to_drop_[key].insert(rank);
  }
  todo_changed_.notify_all();
}

void CheckpointRegistry::Accept(const v1::CheckpointRef& ref) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(KeyOf(ref));
    if (at == entries_.end()) return;
    for (auto& [rank, shard] : at->second.shards) shard.accepted = true;
    to_settle_.insert(at->first);
  }
  todo_changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointRegistry::BeginCopy(
    const std::string& job, const ShardManifest& original) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  CheckpointStore* const store = FindStore(job, nullptr);
  if (store == nullptr) return NothingOf(job);
  const Key key = {job, original.step, original.attempt};
  bool committed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    committed = at != entries_.end() && at->second.committed;
  }
  if (committed) {
    NIBBLE_RETURN_IF_ERROR(ReopenHere(key));
  }
  return store->BeginCopy(original);
}

absl::Status CheckpointRegistry::TakeCopy(const std::string& job, const CheckpointHeader& header,
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
      known = entries_.contains(key);
    }
    v1::StoreIdentity store;
    if (options_.followed && !input) store = options_.followed();
    if (!known) {
      NIBBLE_RETURN_IF_ERROR(WriteStore(key, store));
      NIBBLE_RETURN_IF_ERROR(WriteHeader(job, header));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
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

absl::Status CheckpointRegistry::RemoveDamaged(const v1::CheckpointRef& ref, int32_t rank) {
  absl::Status status;
  {
    const std::lock_guard<std::mutex> surgery(surgery_mutex_);
    const Key key = KeyOf(ref);
    CheckpointStore* const store = FindStore(ref.job(), nullptr);
    bool committed = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto at = entries_.find(key);
      if (store == nullptr || at == entries_.end()) return NothingOf(ref.job());
      committed = at->second.committed;
    }
    if (committed) status = ReopenHere(key);
    if (status.ok()) status = store->DiscardShard(ref.step(), ref.attempt(), rank);
    if (absl::IsNotFound(status)) status = absl::OkStatus();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok()) entries_.at(key).shards.erase(rank);
  }
  if (options_.changed) options_.changed();
  return status;
}

absl::Status CheckpointRegistry::MakeLoadable(const v1::CheckpointRef& ref) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  const Key key = KeyOf(ref);
  std::vector<Key> in_the_way;
  bool committed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end()) return NothingOf(ref.job());
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
    for (const auto& [other, its] : entries_) {
      if (other != key && its.committed && std::get<0>(other) == ref.job() &&
          std::get<1>(other) == ref.step()) {
        in_the_way.push_back(other);
      }
    }
  }
  // Their shards stay sealed; only the checkpoint's name is removed.
  for (const Key& other : in_the_way) {
    NIBBLE_RETURN_IF_ERROR(ReopenHere(other));
  }
  return committed ? absl::OkStatus() : CommitHere(key);
}

}  // namespace nibble

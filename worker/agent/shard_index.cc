#include "worker/agent/shard_index.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/protocol/store_identity.h"
#include "worker/agent/data_directory.h"

namespace nibble {

std::string ShardManifestBytes(const ShardManifest& shard) {
  ShardManifest tensors = shard;
  tensors.files.clear();
  std::string record = EncodeShard(tensors);
  record.resize(record.size() - sizeof(uint32_t));
  return record;
}

uint32_t ShardManifestCrc(const ShardManifest& shard) { return Crc32c(ShardManifestBytes(shard)); }

absl::StatusOr<ShardManifest> ShardManifestFrom(const std::string& bytes) {
  std::string record = bytes;
  AppendLittle(record, Crc32c(bytes));
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

CheckpointKey KeyOf(const v1::CheckpointRef& ref) {
  return {.job = ref.job(), .step = ref.step(), .attempt = ref.attempt()};
}

std::string Describe(const CheckpointKey& key) {
  return absl::StrCat("checkpoint of ", key.job, ", step ", key.step, ", attempt ", key.attempt);
}

bool StoredCheckpoint::accepted() const {
  return std::all_of(shards.begin(), shards.end(),
                     [](const auto& shard) { return shard.second.accepted; });
}

StoredCheckpoint* ShardIndex::Find(const CheckpointKey& key) {
  const auto at = checkpoints_.find(key);
  return at == checkpoints_.end() ? nullptr : &at->second;
}

const StoredCheckpoint* ShardIndex::Find(const CheckpointKey& key) const {
  const auto at = checkpoints_.find(key);
  return at == checkpoints_.end() ? nullptr : &at->second;
}

std::vector<CheckpointKey> ShardIndex::CommittedRivals(const CheckpointKey& key) const {
  std::vector<CheckpointKey> rivals;
  for (const auto& [other, checkpoint] : checkpoints_) {
    if (checkpoint.committed && other != key && other.job == key.job && other.step == key.step) {
      rivals.push_back(other);
    }
  }
  return rivals;
}

int64_t ShardIndex::NewestAccepted(const std::string& job, const v1::StoreIdentity* epoch) const {
  int64_t newest = -1;
  for (auto at = checkpoints_.lower_bound({.job = job});
       at != checkpoints_.end() && at->first.job == job; ++at) {
    const auto& [key, checkpoint] = *at;
    if (checkpoint.input || (epoch != nullptr && !SameEpoch(checkpoint.store, *epoch))) continue;
    for (const auto& [rank, shard] : checkpoint.shards) {
      if (shard.accepted && !IsToBeDropped(key, rank)) newest = std::max(newest, key.step);
    }
  }
  return newest;
}

ShardIndex::Replaced ShardIndex::ReplaceJob(const std::string& job, int64_t generation,
                                            Checkpoints present) {
  Replaced replaced;
  size_t before = 0;
  size_t after = 0;
  for (auto at = checkpoints_.begin(); at != checkpoints_.end();) {
    const bool of_job = at->first.job == job;
    if (of_job) before += at->second.shards.size();
    if (!of_job || at->second.generation == generation) {
      ++at;
      continue;
    }
    if (at->second.awaited) replaced.awaited.push_back(at->first);
    at = checkpoints_.erase(at);
  }
  checkpoints_.merge(present);
  for (const auto& [key, checkpoint] : checkpoints_) {
    if (key.job == job) after += checkpoint.shards.size();
  }
  replaced.lost = before - std::min(before, after);
  return replaced;
}

bool ShardIndex::IsToBeDropped(const CheckpointKey& key, int32_t rank) const {
  for (const auto* works : {&work_, &begun_}) {
    const auto work = works->find(key.job);
    if (work == works->end()) continue;
    const auto at = work->second.drop.find(key);
    if (at != work->second.drop.end() && at->second.contains(rank)) return true;
  }
  return false;
}

void ShardIndex::DropAll(const CheckpointKey& key, const StoredCheckpoint& checkpoint,
                         const Deletion& deletion) {
  for (const auto& [rank, shard] : checkpoint.shards) work_[key.job].drop[key][rank] = deletion;
}

std::vector<v1::ShardReport> ShardIndex::Report(int64_t number) {
  std::vector<v1::ShardReport> all;
  for (auto& [key, checkpoint] : checkpoints_) {
    if (checkpoint.input) continue;
    for (auto& [rank, shard] : checkpoint.shards) {
      if (IsToBeDropped(key, rank)) continue;
      if (shard.first_report == 0 || number == 1) shard.first_report = number;
      all.push_back(shard.report);
      if (!checkpoint.store.id().empty()) *all.back().mutable_store() = checkpoint.store;
    }
  }
  return all;
}

std::vector<std::string> ShardIndex::Answered(const v1::ConnectResponse& response) {
  std::vector<std::string> lines;
  for (const v1::DroppedShard& dropped : response.dropped()) {
    // Until it has received a report durably, the coordinator does not know what is here.
    if (response.answered() <= 0) break;
    const CheckpointKey key = KeyOf(dropped.ref());
    StoredCheckpoint* const checkpoint = Find(key);
    if (checkpoint == nullptr || !checkpoint->shards.contains(dropped.rank())) continue;
    // Coordinators of an earlier version do not name the epoch.
    const v1::StoreIdentity& order = dropped.has_order() ? dropped.order() : response.store();
    if (!SameEpoch(checkpoint->store, order) || !SameEpoch(checkpoint->store, response.store())) {
      if (std::exchange(checkpoint->failure_logged, true)) continue;
      lines.push_back(absl::StrCat(Describe(key), " is kept: the coordinator dropped it, but ",
                                   "another store, or another epoch, ordered it"));
      continue;
    }
    work_[key.job].drop[key][dropped.rank()] = {
        .kind = dropped.kind(), .reason = dropped.reason(), .order = order};
  }
  for (auto& [key, checkpoint] : checkpoints_) {
    if (!SameEpoch(checkpoint.store, response.store())) continue;
    for (auto& [rank, shard] : checkpoint.shards) {
      if (shard.accepted || shard.first_report == 0 || shard.first_report > response.answered() ||
          IsToBeDropped(key, rank)) {
        continue;
      }
      shard.accepted = true;
      work_[key.job].settle.insert(key);
    }
  }
  return lines;
}

void ShardIndex::Accept(const CheckpointKey& key) {
  StoredCheckpoint* const checkpoint = Find(key);
  if (checkpoint == nullptr) return;
  for (auto& [rank, shard] : checkpoint->shards) shard.accepted = true;
  work_[key.job].settle.insert(key);
}

void ShardIndex::TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store) {
  const CheckpointKey key = KeyOf(known.ref());
  const StoredCheckpoint* const checkpoint = Find(key);
  if (checkpoint == nullptr || checkpoint->input || SameEpoch(checkpoint->store, store)) return;
  const auto shard = checkpoint->shards.find(known.rank());
  if (shard != checkpoint->shards.end() &&
      shard->second.report.manifest_crc32c() == known.manifest_crc32c()) {
    work_[key.job].take_over[key] = store;
  }
}

void ShardIndex::RemoveOrphans(const std::string& job, const std::string& store_id,
                               const v1::StoreIdentity& by) {
  for (const auto& [key, checkpoint] : checkpoints_) {
    if (key.job == job && !checkpoint.input && checkpoint.store.id() == store_id &&
        !SameEpoch(checkpoint.store, by)) {
      DropAll(key, checkpoint,
              {.kind = v1::DELETION_KIND_ORPHAN,
               .reason = "a person ordered the removal of the orphaned job",
               .order = by});
    }
  }
}

void ShardIndex::ReleaseLease(const CheckpointKey& key) {
  if (--leases_[key] > 0) return;
  leases_.erase(key);
  const StoredCheckpoint* const checkpoint = Find(key);
  if (checkpoint != nullptr && checkpoint->input) DropAll(key, *checkpoint, {});
}

ShardIndex::Work ShardIndex::BeginWork(const std::string& job) {
  auto node = work_.extract(job);
  if (node.empty()) return {};
  return begun_.insert_or_assign(job, std::move(node.mapped())).first->second;
}

}  // namespace nibble

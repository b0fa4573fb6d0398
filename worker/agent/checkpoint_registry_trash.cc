// What leaves the registry's stores for the trash, and what comes back.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/store_identity.h"
#include "common/status_macros.h"
#include "worker/agent/checkpoint_registry.h"

namespace nibble {
namespace {

// About what the record of a trashed shard and its directory take.
constexpr int64_t kRecordBytes = int64_t{1} << 20;

}  // namespace

int64_t CheckpointRegistry::NewestAccepted(const std::string& job) const {
  const MutexLock lock(&mutex_);
  return index_.NewestAccepted(job, /*epoch=*/nullptr);
}

bool CheckpointRegistry::MakeRoom(int64_t bytes) {
  return options_.trash != nullptr && options_.trash->Free(bytes, [this](const std::string& job) {
    return NewestAccepted(job);
  });
}

absl::Status CheckpointRegistry::MoveToTrash(const StoredCheckpoint& checkpoint, int32_t rank,
                                             const Deletion& deletion) {
  JobStore& job = *FindJob(checkpoint.shards.at(rank).report.ref().job());
  absl::Status moved = job.MoveToTrash(checkpoint, rank, deletion);
  if (absl::IsResourceExhausted(moved) && MakeRoom(kRecordBytes)) {
    moved = job.MoveToTrash(checkpoint, rank, deletion);
  }
  return moved;
}

absl::Status CheckpointRegistry::DeleteHere(const CheckpointKey& key, const Deletions& deletions,
                                            Mutex&) {
  JobStore& job = *FindJob(key.job);
  for (const auto& [rank, deletion] : deletions) {
    StoredCheckpoint checkpoint;
    bool at_once = false;
    {
      const MutexLock lock(&mutex_);
      const StoredCheckpoint* const found = index_.Find(key);
      if (found == nullptr || !found->shards.contains(rank)) continue;
      checkpoint = *found;
      at_once = found->input || (deletion.kind == v1::DELETION_KIND_RETENTION &&
                                 index_.NewestAccepted(key.job, &found->store) > key.step);
    }
    const absl::Status status = at_once ? job.store().DiscardShard(key.step, key.attempt, rank)
                                        : MoveToTrash(checkpoint, rank, deletion);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    const MutexLock lock(&mutex_);
    index_.FindOrAdd(key).shards.erase(rank);
  }
  {
    const MutexLock lock(&mutex_);
    const StoredCheckpoint* const left = index_.Find(key);
    if (left != nullptr && (!left->shards.empty() || left->awaited)) return absl::OkStatus();
    index_.Remove(key);
  }
  job.RemoveHeader(key.step, key.attempt);
  job.RemoveOrigin(key.step, key.attempt);
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::RemoveRivals(const CheckpointKey& key, Mutex& disk) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed,
                          FindJob(key.job)->store().Committed());
  for (const StoredDirectory& directory : committed) {
    const CheckpointKey other = {key.job, directory.step, directory.attempt};
    if (other.step != key.step || other == key) continue;
    const Deletion deletion = {
        .kind = v1::DELETION_KIND_REPLACED,
        .reason = absl::StrCat("attempt ", key.attempt, " has stored this step")};
    Deletions deletions;
    bool known = false;
    bool leased = false;
    {
      const MutexLock lock(&mutex_);
      const StoredCheckpoint* const rival = index_.Find(other);
      leased = index_.HasLease(other);
      known = rival != nullptr;
      if (known) {
        for (const auto& [rank, shard] : rival->shards) deletions[rank] = deletion;
      }
    }
    if (!known) {  // its manifest cannot be read
      NIBBLE_RETURN_IF_ERROR(FindJob(key.job)->store().Reopen(other.step, other.attempt));
      NIBBLE_RETURN_IF_ERROR(DeleteUnlisted(other, {}, deletion, disk));
      continue;
    }
    NIBBLE_RETURN_IF_ERROR(ReopenHere(other, disk));
    if (!leased) NIBBLE_RETURN_IF_ERROR(DeleteHere(other, deletions, disk));
  }
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::Abandon(const CheckpointKey& key, const CheckpointHeader& header) {
  Mutex& disk = DiskOf(key.job);
  const MutexLock writing(&disk);
  StoredCheckpoint failed = {.header = header};
  if (options_.ordered_by) failed.store = options_.ordered_by(key.job);
  NIBBLE_RETURN_IF_ERROR(
      DeleteUnlisted(key, std::move(failed),
                     {.kind = v1::DELETION_KIND_NOT_COMMITTED,
                      .reason = "the checkpoint failed before its shards were reported"},
                     disk));
  return DeleteHere(key, {}, disk);  // the files beside the store, unless replicas are here
}

absl::Status CheckpointRegistry::DeleteUnlisted(const CheckpointKey& key, StoredCheckpoint known,
                                                const Deletion& deletion, Mutex&) {
  const JobStore& job = *FindJob(key.job);
  {
    const MutexLock lock(&mutex_);
    for (const ShardManifest& shard : job.store().InDoubt()) {
      if (shard.step != key.step || shard.attempt != key.attempt) continue;
      const StoredCheckpoint* const listed = index_.Find(key);
      if (listed != nullptr && listed->shards.contains(shard.rank)) continue;  // a replica
      known.shards[shard.rank] = {.report = ShardReportOf(key.job, shard, known.header.world)};
    }
  }
  for (const auto& [rank, shard] : known.shards) {
    const absl::Status moved = MoveToTrash(known, rank, deletion);
    if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
  }
  return absl::OkStatus();
}

void CheckpointRegistry::Restore(const v1::CheckpointRef& ref) {
  const CheckpointKey key = KeyOf(ref);
  JobStore* const job = FindJob(key.job);
  if (job == nullptr) return;
  bool restored = false;
  Mutex& disk = DiskOf(key.job);
  const auto restore = [&](const v1::TrashedShard& shard, const CheckpointHeader& header,
                           const std::string& directory)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk) -> absl::Status {
    bool committed = false;
    {
      const MutexLock lock(&mutex_);
      const StoredCheckpoint* const here = index_.Find(key);
      if (here != nullptr && here->shards.contains(shard.rank())) {
        return absl::AlreadyExistsError("the rank's shard is here");
      }
      if (here != nullptr && !SameEpoch(here->store, shard.store())) {
        return absl::FailedPreconditionError(
            "shards of this step and attempt that another store, or epoch, ordered are here");
      }
      committed = here != nullptr && here->committed;
    }
    if (committed) NIBBLE_RETURN_IF_ERROR(ReopenHere(key, disk));
    const int64_t generation = job->store().generation();
    NIBBLE_ASSIGN_OR_RETURN(const ShardManifest sealed,
                            job->TakeFromTrash(shard, header, directory));
    const MutexLock lock(&mutex_);
    StoredCheckpoint& checkpoint = index_.FindOrAdd(key);
    if (checkpoint.shards.empty()) {
      checkpoint.header = header;
      checkpoint.store = shard.store();
      checkpoint.generation = generation;
    }
    checkpoint.input = false;
    checkpoint.shards[sealed.rank] = {.report = ShardReportOf(key.job, sealed, header.world)};
    restored = true;
    return absl::OkStatus();
  };
  {
    const MutexLock writing(&disk);
    options_.trash->TakeOut(ref, restore);
  }
  if (restored) Changed();
}

}  // namespace nibble

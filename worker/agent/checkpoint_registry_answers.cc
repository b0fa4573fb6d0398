// The registry's threads: what answers require of a job's disk.

#include "worker/agent/checkpoint_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

void CheckpointRegistry::LogOnce(const CheckpointKey& key, const char* what,
                                 const absl::Status& status) {
  {
    const MutexLock lock(&mutex_);
    StoredCheckpoint* const checkpoint = index_.Find(key);
    if (checkpoint != nullptr && std::exchange(checkpoint->failure_logged, true)) return;
  }
  Log(absl::StrCat(Describe(key), what, std::string(status.message())));
}

void CheckpointRegistry::CarryOutAnswers(const std::string& name, Job& job) {
  while (true) {
    ShardIndex::Work work;
    bool check = false;
    {
      const MutexLock lock(&mutex_);
      job.working = false;
      index_.FinishWork(name);
      settled_.SignalAll();
      while (!closing_ && !job.check_directory && !index_.HasWork(name)) {
        job.work_added.Wait(&mutex_);
      }
      if (closing_) return;
      work = index_.BeginWork(name);
      check = std::exchange(job.check_directory, false);
      job.working = true;
    }
    if (check) CheckDirectory(name, job);
    for (const auto& [key, store] : work.take_over) MakeTakenOver(key, store);
    for (const auto& [key, deletions] : work.drop) {
      const absl::Status dropped = Drop(key, deletions);
      if (!dropped.ok()) LogOnce(key, " is not deleted: ", dropped);
      settled_.SignalAll();
    }
    for (const CheckpointKey& key : work.settle) Settle(key);
  }
}

void CheckpointRegistry::CheckDirectory(const std::string& name, Job& job) {
  JobStore& stored = *job.store;
  const std::string& path = stored.store().path();
  absl::Status status = stored.store().MakeAgainIfRemoved();
  bool removed = false;
  size_t lost = 0;
  {
    const MutexLock disk(&DiskOf(name));
    removed = stored.store().generation() != stored.listed_generation();
    if (removed) {
      absl::StatusOr<ShardIndex::Checkpoints> present = stored.List();
      status.Update(present.status());
      const MutexLock lock(&mutex_);
      const ShardIndex::Replaced replaced =
          index_.ReplaceJob(name, stored.listed_generation(),
                            present.ok() ? *std::move(present) : ShardIndex::Checkpoints());
      lost = replaced.lost;
      for (const CheckpointKey& key : replaced.awaited) {
        outcomes_.insert_or_assign(key, CommitResult(absl::UnavailableError(
                                            absl::StrCat("the directory ", path, " was removed"))));
      }
    }
  }
  if (!status.ok() && !job.unstorable) {
    Log(absl::StrCat("the checkpoints of job ", name,
                     " cannot be stored: ", std::string(status.message())));
  }
  job.unstorable = !status.ok();
  if (!removed) return;
  settled_.SignalAll();
  Log(absl::StrCat("the directory ", path, " was removed or replaced; it is made again, and ", lost,
                   " of its shards are lost"));
  Changed();
}

void CheckpointRegistry::MakeTakenOver(const CheckpointKey& key, const v1::StoreIdentity& store) {
  absl::Status written = absl::OkStatus();
  {
    const MutexLock disk(&DiskOf(key.job));
    written = FindJob(key.job)->WriteOrigin(key.step, key.attempt, store);
    if (written.ok()) {
      const MutexLock lock(&mutex_);
      StoredCheckpoint* const checkpoint = index_.Find(key);
      if (checkpoint == nullptr) return;
      checkpoint->failure_logged = false;
      checkpoint->store = store;
      // Only answers to later reports are about this store's shards.
      for (auto& [rank, shard] : checkpoint->shards) shard.first_report = 0;
    }
  }
  // If it cannot be written nothing changes, and the order is repeated.
  if (!written.ok()) return LogOnce(key, " is not taken over: ", written);
  Changed();
}

void CheckpointRegistry::Settle(const CheckpointKey& key) {
  const auto find_accepted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> StoredCheckpoint* {
    StoredCheckpoint* const checkpoint = index_.Find(key);
    return checkpoint != nullptr && checkpoint->accepted() ? checkpoint : nullptr;
  };
  {
    const MutexLock lock(&mutex_);
    if (find_accepted() == nullptr) return;
  }
  if (options_.accepted) {
    if (const absl::Status status = options_.accepted(); !status.ok()) {
      // It stays sealed and reported; a later answer accepts it again.
      Log(absl::StrCat(Describe(key), " is not accepted yet: ", std::string(status.message())));
      const MutexLock lock(&mutex_);
      StoredCheckpoint* const checkpoint = index_.Find(key);
      if (checkpoint == nullptr) return;
      for (auto& [rank, shard] : checkpoint->shards) shard.accepted = false;
      return;
    }
  }
  absl::Status committed;
  {
    Mutex& disk = DiskOf(key.job);
    const MutexLock writing(&disk);
    bool commit = false;
    {
      const MutexLock lock(&mutex_);
      const StoredCheckpoint* const checkpoint = find_accepted();
      commit = checkpoint != nullptr && checkpoint->complete() && !checkpoint->committed;
    }
    if (commit) committed = CommitHere(key, disk);
  }
  if (!committed.ok()) {
    // The checkpoint exists for the cluster even if this disk fails: MakeLoadable tries again.
    Log(absl::StrCat(Describe(key), " is not committed here: ", std::string(committed.message())));
  }
  const MutexLock lock(&mutex_);
  StoredCheckpoint* const checkpoint = index_.Find(key);
  if (checkpoint == nullptr || !std::exchange(checkpoint->awaited, false)) return;
  outcomes_.insert_or_assign(key, CommitResult(CheckpointStore::CommitReport()));
  settled_.SignalAll();
}

absl::Status CheckpointRegistry::Drop(const CheckpointKey& key, const Deletions& ordered) {
  Mutex& disk = DiskOf(key.job);
  const MutexLock writing(&disk);
  Deletions deletions = ordered;
  bool committed = false;
  {
    const MutexLock lock(&mutex_);
    StoredCheckpoint* const checkpoint = index_.Find(key);
    // A leased checkpoint is dropped later: the coordinator repeats the order with every answer.
    if (checkpoint == nullptr || index_.HasLease(key)) return absl::OkStatus();
    committed = checkpoint->committed;
    if (std::exchange(checkpoint->awaited, false)) {
      outcomes_.insert_or_assign(key, CommitResult(absl::AbortedError(absl::StrCat(
                                          "the coordinator dropped the ", Describe(key)))));
      for (const auto& [rank, shard] : checkpoint->shards) {
        deletions.try_emplace(rank, ordered.begin()->second);
      }
    }
  }
  if (committed) NIBBLE_RETURN_IF_ERROR(ReopenHere(key, disk));
  return DeleteHere(key, deletions, disk);
}

absl::Status CheckpointRegistry::CommitHere(const CheckpointKey& key, Mutex& disk) {
  // The store would delete those that this one replaces.
  NIBBLE_RETURN_IF_ERROR(RemoveRivals(key, disk));
  CheckpointHeader header;
  {
    const MutexLock lock(&mutex_);
    header = index_.FindOrAdd(key).header;
  }
  NIBBLE_RETURN_IF_ERROR(FindJob(key.job)->Commit(header));
  const MutexLock lock(&mutex_);
  index_.FindOrAdd(key).committed = true;
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::ReopenHere(const CheckpointKey& key, Mutex&) {
  CheckpointHeader header;
  {
    const MutexLock lock(&mutex_);
    header = index_.FindOrAdd(key).header;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::set<int32_t> sealed, FindJob(key.job)->Reopen(header));
  const MutexLock lock(&mutex_);
  StoredCheckpoint& checkpoint = index_.FindOrAdd(key);
  checkpoint.committed = false;
  std::erase_if(checkpoint.shards,
                [&](const auto& shard) { return !sealed.contains(shard.first); });
  return absl::OkStatus();
}

}  // namespace nibble

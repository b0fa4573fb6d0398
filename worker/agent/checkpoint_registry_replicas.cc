// The registry's checkpoints for readers, and replicas of other workers' shards.

#include "worker/agent/checkpoint_registry.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files/files.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

absl::Status NothingOf(const std::string& job) {
  return absl::NotFoundError(
      absl::StrCat("checkpoint: no shard of job '", job, "' is on this worker"));
}

// Makes a directory with hard links to the regular files below `from`, and its parents.
absl::Status LinkTree(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(to));
  std::error_code error;
  fs::recursive_directory_iterator at(from, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const std::string path = to + "/" + at->path().lexically_relative(from).string();
    std::error_code failed;
    if (at->is_directory(failed)) {
      NIBBLE_RETURN_IF_ERROR(MakeDirectories(path));
    } else if (at->is_regular_file(failed)) {
      fs::create_hard_link(at->path(), path, failed);
      if (failed) return absl::ErrnoToStatus(failed.value(), absl::StrCat("linking ", path));
    }
  }
  return error ? absl::ErrnoToStatus(error.value(), absl::StrCat("reading ", from))
               : absl::OkStatus();
}

}  // namespace

bool CheckpointRegistry::IsCommitted(const CheckpointKey& key) const {
  const MutexLock lock(&mutex_);
  const StoredCheckpoint* const checkpoint = index_.Find(key);
  return checkpoint != nullptr && checkpoint->committed;
}

// --- Reading

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointRegistry::Open(
    const v1::CheckpointRef& ref) const {
  const JobStore* const job = FindJob(ref.job());
  if (job == nullptr) return NothingOf(ref.job());
  const MutexLock disk(&DiskOf(ref.job()));
  auto reader = job->store().OpenCheckpoint(ref.step());
  if (reader.ok() && (*reader)->manifest().header.attempt != ref.attempt()) {
    return absl::NotFoundError(absl::StrCat("checkpoint: of step ", ref.step(), " attempt ",
                                            (*reader)->manifest().header.attempt, " is here, not ",
                                            ref.attempt()));
  }
  return reader;
}

absl::StatusOr<std::unique_ptr<ShardReader>> CheckpointRegistry::OpenShard(
    const v1::CheckpointRef& ref, int32_t rank) const {
  const JobStore* const job = FindJob(ref.job());
  if (job == nullptr) return NothingOf(ref.job());
  // A concurrent commit moves the files, which would look like damage.
  const MutexLock disk(&DiskOf(ref.job()));
  return job->store().OpenShard(ref.step(), ref.attempt(), rank);
}

absl::StatusOr<CheckpointHeader> CheckpointRegistry::HeaderOf(const v1::CheckpointRef& ref) const {
  const MutexLock lock(&mutex_);
  const StoredCheckpoint* const checkpoint = index_.Find(KeyOf(ref));
  if (checkpoint == nullptr) return NothingOf(ref.job());
  return checkpoint->header;
}

absl::StatusOr<uint32_t> CheckpointRegistry::CrcOf(const v1::CheckpointRef& ref,
                                                   int32_t rank) const {
  const MutexLock lock(&mutex_);
  const StoredCheckpoint* const checkpoint = index_.Find(KeyOf(ref));
  if (checkpoint == nullptr) return NothingOf(ref.job());
  const auto shard = checkpoint->shards.find(rank);
  if (shard == checkpoint->shards.end()) {
    return absl::NotFoundError(absl::StrCat("rank: the shard of ", rank, " of step ", ref.step(),
                                            ", attempt ", ref.attempt(), " is not here"));
  }
  return shard->second.report.manifest_crc32c();
}

// --- Replicas

CheckpointRegistry::Lease CheckpointRegistry::Keep(const v1::CheckpointRef& ref) {
  const CheckpointKey key = KeyOf(ref);
  {
    // Not in the middle of a removal.
    const MutexLock disk(&DiskOf(key.job));
    const MutexLock lock(&mutex_);
    index_.AddLease(key);
  }
  return Lease(this, [this, key](const void*) { ReleaseLease(key); });
}

void CheckpointRegistry::ReleaseLease(const CheckpointKey& key) {
  const MutexLock lock(&mutex_);
  index_.ReleaseLease(key);
  WakeJob(key.job);
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointRegistry::BeginReplica(
    const std::string& job, const ShardManifest& original) {
  const JobStore* const stored = FindJob(job);
  if (stored == nullptr) return NothingOf(job);
  Mutex& disk = DiskOf(job);
  const MutexLock writing(&disk);
  const CheckpointKey key = {job, original.step, original.attempt};
  if (IsCommitted(key)) NIBBLE_RETURN_IF_ERROR(ReopenHere(key, disk));
  bool replaces = false;
  {
    const MutexLock lock(&mutex_);
    const StoredCheckpoint* const checkpoint = index_.Find(key);
    replaces = checkpoint != nullptr && checkpoint->shards.contains(original.rank);
  }
  if (replaces) {
    NIBBLE_RETURN_IF_ERROR(DeleteHere(
        key,
        {{original.rank,
          {.kind = v1::DELETION_KIND_REPLACED, .reason = "another worker's copy replaces it"}}},
        disk));
  }
  return stored->store().BeginCopy(original);
}

absl::Status CheckpointRegistry::AddReplica(const std::string& job, const CheckpointHeader& header,
                                            const ShardManifest& sealed, bool input) {
  if (header.step != sealed.step || header.attempt != sealed.attempt ||
      sealed.rank >= header.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("header: of step ", header.step, ", attempt ", header.attempt, ", world ",
                     header.world, "; the shard of rank ", sealed.rank, " is of step ", sealed.step,
                     ", attempt ", sealed.attempt));
  }
  const CheckpointKey key = {job, sealed.step, sealed.attempt};
  v1::StoreIdentity store;
  if (options_.followed && !input) store = options_.followed();
  {
    const MutexLock disk(&DiskOf(job));
    const JobStore& stored = *FindJob(job);
    bool known = false;
    {
      const MutexLock lock(&mutex_);
      known = index_.Find(key) != nullptr;
    }
    const int64_t generation = stored.store().generation();
    if (!known) {
      NIBBLE_RETURN_IF_ERROR(stored.WriteOrigin(key.step, key.attempt, store));
      NIBBLE_RETURN_IF_ERROR(stored.WriteHeader(header));
    }
    const MutexLock lock(&mutex_);
    StoredCheckpoint& checkpoint = index_.FindOrAdd(key);
    if (!known) {
      checkpoint.header = header;
      checkpoint.store = store;
      checkpoint.generation = generation;
    }
    checkpoint.input = input && (!known || checkpoint.input);
    checkpoint.shards[sealed.rank] = {.report = ShardReportOf(job, sealed, checkpoint.header.world),
                                      .accepted = input};
  }
  Changed();
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::RemoveDamaged(const v1::CheckpointRef& ref, int32_t rank) {
  absl::Status status;
  {
    Mutex& disk = DiskOf(ref.job());
    const MutexLock writing(&disk);
    const CheckpointKey key = KeyOf(ref);
    bool committed = false;
    {
      const MutexLock lock(&mutex_);
      const StoredCheckpoint* const checkpoint = index_.Find(key);
      if (checkpoint == nullptr) return NothingOf(ref.job());
      committed = checkpoint->committed;
    }
    if (committed) status = ReopenHere(key, disk);
    if (status.ok()) {
      status = DeleteHere(key,
                          {{rank,
                            {.kind = v1::DELETION_KIND_DAMAGED,
                             .reason = "it was found damaged when it was read"}}},
                          disk);
    }
  }
  Changed();
  return status;
}

absl::Status CheckpointRegistry::MakeLoadable(const v1::CheckpointRef& ref) {
  Mutex& disk = DiskOf(ref.job());
  const MutexLock writing(&disk);
  const CheckpointKey key = KeyOf(ref);
  std::vector<CheckpointKey> rivals;
  bool committed = false;
  {
    const MutexLock lock(&mutex_);
    const StoredCheckpoint* const checkpoint = index_.Find(key);
    if (checkpoint == nullptr) return NothingOf(ref.job());
    std::vector<int32_t> missing;
    for (int32_t rank = 0; rank < checkpoint->header.world; ++rank) {
      if (!checkpoint->shards.contains(rank) && missing.size() < 3) missing.push_back(rank);
    }
    if (!missing.empty()) {
      return absl::NotFoundError(
          absl::StrCat("checkpoint of step ", ref.step(), ", attempt ", ref.attempt(), ": of ",
                       checkpoint->header.world, " shards ",
                       checkpoint->header.world - checkpoint->shards.size(), " are not here, rank ",
                       absl::StrJoin(missing, ", "), " first"));
    }
    committed = checkpoint->committed;
    rivals = index_.CommittedRivals(key);
  }
  // Their shards stay sealed; only the checkpoint's name is removed.
  for (const CheckpointKey& other : rivals) {
    NIBBLE_RETURN_IF_ERROR(ReopenHere(other, disk));
  }
  return committed ? absl::OkStatus() : CommitHere(key, disk);
}

absl::Status CheckpointRegistry::LinkInto(const v1::CheckpointRef& ref,
                                          const std::string& directory) const {
  const JobStore* const job = FindJob(ref.job());
  if (job == nullptr) return NothingOf(ref.job());
  const MutexLock disk(&DiskOf(ref.job()));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, job->store().Committed());
  const auto found = std::find_if(committed.begin(), committed.end(), [&](const auto& one) {
    return one.step == ref.step() && one.attempt == ref.attempt();
  });
  if (found == committed.end()) return NothingOf(ref.job());
  const std::string name = DirectoryName(*found);
  return LinkTree(job->store().path() + "/" + name, directory + "/" + name);
}

}  // namespace nibble

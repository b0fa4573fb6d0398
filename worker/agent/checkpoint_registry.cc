#include "worker/agent/checkpoint_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

absl::Status CheckOffer(const CheckpointHeader& header, const std::vector<ShardManifest>& shards) {
  for (const ShardManifest& shard : shards) {
    NIBBLE_RETURN_IF_ERROR(CheckShard(shard));
    if (shard.step != header.step || shard.attempt != header.attempt ||
        shard.rank >= header.world) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard of rank ", shard.rank, ", step ", shard.step, ", attempt ",
                       shard.attempt, " is not of a checkpoint of step ", header.step, ", attempt ",
                       header.attempt, ", world ", header.world));
    }
  }
  // Only with all shards here can the whole manifest be checked.
  if (static_cast<int32_t>(shards.size()) != header.world) return absl::OkStatus();
  return MakeManifest(header, shards).status();
}

absl::Status NothingOf(const std::string& job) {
  return absl::NotFoundError(
      absl::StrCat("checkpoint: no shard of job '", job, "' is on this worker"));
}

}  // namespace

CheckpointRegistry::CheckpointRegistry(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { CarryOutAnswers(); });
}

CheckpointRegistry::~CheckpointRegistry() {
  std::map<Attempt, std::unique_ptr<CheckpointHost>> hosts;
  {
    const MutexLock lock(&mutex_);
    closing_ = true;
    hosts.swap(hosts_);
  }
  settled_.SignalAll();
  work_added_.SignalAll();
  thread_.join();
  hosts.clear();  // joins the hosts' threads, which return from Commit
}

void CheckpointRegistry::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void CheckpointRegistry::Changed() const {
  if (options_.changed) options_.changed();
}

void CheckpointRegistry::LogOnce(const CheckpointKey& key, const char* what,
                                 const absl::Status& status) {
  {
    const MutexLock lock(&mutex_);
    StoredCheckpoint* const checkpoint = index_.Find(key);
    if (checkpoint != nullptr && std::exchange(checkpoint->failure_logged, true)) return;
  }
  Log(absl::StrCat(Describe(key), what, std::string(status.message())));
}

JobStore* CheckpointRegistry::FindJob(const std::string& job) const {
  const MutexLock lock(&mutex_);
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : at->second.get();
}

Mutex& CheckpointRegistry::DiskOf(const std::string& job) const {
  const MutexLock lock(&mutex_);
  std::unique_ptr<Mutex>& disk = disks_[job];
  if (disk == nullptr) disk = std::make_unique<Mutex>();
  return *disk;
}

bool CheckpointRegistry::IsCommitted(const CheckpointKey& key) const {
  const MutexLock lock(&mutex_);
  const StoredCheckpoint* const checkpoint = index_.Find(key);
  return checkpoint != nullptr && checkpoint->committed;
}

// --- Jobs and attempts

absl::Status CheckpointRegistry::OpenJob(const std::string& job, const std::string& directory,
                                         const StoreIdentity& identity) {
  if (FindJob(job) != nullptr) return absl::OkStatus();
  const MutexLock disk(&DiskOf(job));
  if (FindJob(job) != nullptr) return absl::OkStatus();  // opened meanwhile
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<JobStore> opened,
                          JobStore::Open(job, directory, identity, options_.faults));
  NIBBLE_ASSIGN_OR_RETURN(ShardIndex::Checkpoints checkpoints, opened->List());
  const MutexLock lock(&mutex_);
  index_.Add(std::move(checkpoints));
  jobs_.emplace(job, std::move(opened));
  return absl::OkStatus();
}

absl::StatusOr<SnapshotSink*> CheckpointRegistry::OpenAttempt(const std::string& job,
                                                              int64_t attempt, int32_t ranks) {
  JobStore* const stored = FindJob(job);
  if (stored == nullptr) {
    return absl::NotFoundError(absl::StrCat("job: the store of '", job, "' is not open"));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      auto host, CheckpointHost::Start({.store = &stored->store(),
                                        .attempt = attempt,
                                        .ranks = ranks,
                                        .clock = options_.clock,
                                        .commit =
                                            [this, job](const CheckpointHeader& header,
                                                        std::vector<ShardManifest> shards) {
                                              return Commit(job, header, std::move(shards));
                                            },
                                        .trouble =
                                            [this, job, attempt](const std::string& text) {
                                              SetTrouble({job, attempt}, text);
                                            }}));
  SnapshotSink* const sink = host.get();
  {
    const MutexLock lock(&mutex_);
    std::swap(hosts_[{job, attempt}], host);
  }
  return sink;
}

void CheckpointRegistry::SetTrouble(const Attempt& attempt, const std::string& trouble) {
  {
    const MutexLock lock(&mutex_);
    troubles_[attempt] = trouble;
  }
  Log(absl::StrCat(attempt.first, " attempt ", attempt.second, ": ",
                   trouble.empty() ? "the disk has room for its checkpoint again" : trouble));
  Changed();
}

void CheckpointRegistry::CloseAttempt(const std::string& job, int64_t attempt) {
  const Attempt closed(job, attempt);
  std::unique_ptr<CheckpointHost> host;
  {
    const MutexLock lock(&mutex_);
    auto node = hosts_.extract(closed);
    if (node.empty()) return;
    host = std::move(node.mapped());
    closing_attempts_.insert(closed);
  }
  settled_.SignalAll();
  host.reset();
  const MutexLock lock(&mutex_);
  closing_attempts_.erase(closed);
  troubles_.erase(closed);
}

std::string CheckpointRegistry::TroubleOf(const std::string& job, int64_t attempt) const {
  const MutexLock lock(&mutex_);
  const auto at = troubles_.find({job, attempt});
  return at == troubles_.end() ? "" : at->second;
}

CheckpointRegistry::CommitResult CheckpointRegistry::Commit(const std::string& job,
                                                            const CheckpointHeader& header,
                                                            std::vector<ShardManifest> shards) {
  const CheckpointKey key = {job, header.step, header.attempt};
  NIBBLE_RETURN_IF_ERROR(CheckOffer(header, shards));
  const JobStore& stored = *FindJob(job);
  v1::StoreIdentity store;
  if (options_.ordered_by) store = options_.ordered_by(job);
  const int64_t generation = stored.store().generation();
  NIBBLE_RETURN_IF_ERROR(stored.WriteOrigin(header.step, header.attempt, store));
  NIBBLE_RETURN_IF_ERROR(stored.WriteHeader(header));
  {
    const MutexLock lock(&mutex_);
    StoredCheckpoint& checkpoint = index_.FindOrAdd(key);
    checkpoint.header = header;
    checkpoint.awaited = true;
    checkpoint.store = store;
    checkpoint.generation = generation;
    for (const ShardManifest& shard : shards) {
      checkpoint.shards[shard.rank] = {.report = ShardReportOf(job, shard, header.world)};
    }
  }
  Changed();
  const MutexLock lock(&mutex_);
  while (!closing_ && !outcomes_.contains(key) &&
         !closing_attempts_.contains({job, header.attempt})) {
    settled_.Wait(&mutex_);
  }
  if (auto outcome = outcomes_.extract(key); !outcome.empty()) return std::move(outcome.mapped());
  // The coordinator may have accepted it without an answer so far, so it stays sealed and reported.
  // The ranks that the host would notify have ended.
  if (StoredCheckpoint* const checkpoint = index_.Find(key); checkpoint != nullptr) {
    checkpoint->awaited = false;
  }
  return CheckpointStore::CommitReport();
}

// --- Reports and answers

std::vector<v1::ShardReport> CheckpointRegistry::Report(int64_t number) {
  const MutexLock lock(&mutex_);
  check_directories_ = true;
  work_added_.SignalAll();
  return index_.Report(number);
}

void CheckpointRegistry::Answered(const v1::ConnectResponse& response) {
  std::vector<std::string> lines;
  {
    const MutexLock lock(&mutex_);
    lines = index_.Answered(response);
    work_added_.SignalAll();
  }
  for (const std::string& line : lines) Log(line);
}

void CheckpointRegistry::TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store) {
  const MutexLock lock(&mutex_);
  index_.TakeOver(known, store);
  work_added_.SignalAll();
}

void CheckpointRegistry::RemoveOrphans(const std::string& job, const std::string& store_id,
                                       int64_t kept) {
  const MutexLock lock(&mutex_);
  index_.RemoveOrphans(job, store_id, kept);
  work_added_.SignalAll();
}

void CheckpointRegistry::Accept(const v1::CheckpointRef& ref) {
  const MutexLock lock(&mutex_);
  index_.Accept(KeyOf(ref));
  work_added_.SignalAll();
}

void CheckpointRegistry::AwaitSettled() {
  const MutexLock lock(&mutex_);
  while (!closing_ && (index_.HasWork() || check_directories_ || working_)) {
    settled_.Wait(&mutex_);
  }
}

// --- The thread

void CheckpointRegistry::CarryOutAnswers() {
  while (true) {
    ShardIndex::Work work;
    bool check = false;
    {
      const MutexLock lock(&mutex_);
      working_ = false;
      index_.FinishWork();
      settled_.SignalAll();
      while (!closing_ && !check_directories_ && !index_.HasWork()) work_added_.Wait(&mutex_);
      if (closing_) return;
      work = index_.BeginWork();
      check = std::exchange(check_directories_, false);
      working_ = true;
    }
    if (check) CheckDirectories();
    for (const auto& [key, store] : work.take_over) MakeTakenOver(key, store);
    for (const auto& [key, ranks] : work.drop) {
      const absl::Status dropped = Drop(key, ranks);
      if (!dropped.ok()) LogOnce(key, " is not deleted: ", dropped);
      settled_.SignalAll();
    }
    for (const CheckpointKey& key : work.settle) Settle(key);
  }
}

void CheckpointRegistry::CheckDirectories() {
  std::vector<std::pair<std::string, JobStore*>> jobs;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [name, job] : jobs_) jobs.emplace_back(name, job.get());
  }
  for (const auto& [name, job] : jobs) {
    const std::string& path = job->store().path();
    absl::Status status = job->store().MakeAgainIfRemoved();
    bool removed = false;
    size_t lost = 0;
    {
      const MutexLock disk(&DiskOf(name));
      removed = job->store().generation() != job->listed_generation();
      if (removed) {
        absl::StatusOr<ShardIndex::Checkpoints> present = job->List();
        status.Update(present.status());
        const MutexLock lock(&mutex_);
        const ShardIndex::Replaced replaced =
            index_.ReplaceJob(name, job->listed_generation(),
                              present.ok() ? *std::move(present) : ShardIndex::Checkpoints());
        lost = replaced.lost;
        for (const CheckpointKey& key : replaced.awaited) {
          outcomes_.insert_or_assign(key, CommitResult(absl::UnavailableError(absl::StrCat(
                                              "the directory ", path, " was removed"))));
        }
      }
    }
    if (!status.ok()) {
      Log(absl::StrCat("the checkpoints of job ", name,
                       " cannot be stored: ", std::string(status.message())));
    }
    if (!removed) continue;
    settled_.SignalAll();
    Log(absl::StrCat("the directory ", path, " was removed or replaced; it is made again, and ",
                     lost, " of its shards are lost"));
    Changed();
  }
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

absl::Status CheckpointRegistry::Drop(const CheckpointKey& key, const std::set<int32_t>& ranks) {
  Mutex& disk = DiskOf(key.job);
  const MutexLock writing(&disk);
  JobStore* const job = FindJob(key.job);
  bool all = true;
  bool committed = false;
  {
    const MutexLock lock(&mutex_);
    StoredCheckpoint* const checkpoint = index_.Find(key);
    // A leased checkpoint is dropped later: the coordinator repeats the order with every answer.
    if (job == nullptr || checkpoint == nullptr || index_.HasLease(key)) return absl::OkStatus();
    committed = checkpoint->committed;
    for (const auto& [rank, shard] : checkpoint->shards) all &= ranks.contains(rank);
    if (checkpoint->awaited) {
      outcomes_.insert_or_assign(key, CommitResult(absl::AbortedError(absl::StrCat(
                                          "the coordinator dropped the ", Describe(key)))));
      all = true;
    }
  }
  if (committed) NIBBLE_RETURN_IF_ERROR(ReopenHere(key, disk));
  if (all) {
    NIBBLE_RETURN_IF_ERROR(job->store().Discard(key.step, key.attempt));
    job->RemoveHeader(key.step, key.attempt);
    job->RemoveOrigin(key.step, key.attempt);
    const MutexLock lock(&mutex_);
    index_.Remove(key);
    return absl::OkStatus();
  }
  for (const int32_t rank : ranks) {
    const absl::Status status = job->store().DiscardShard(key.step, key.attempt, rank);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    const MutexLock lock(&mutex_);
    index_.FindOrAdd(key).shards.erase(rank);
  }
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::CommitHere(const CheckpointKey& key, Mutex&) {
  JobStore& job = *FindJob(key.job);
  CheckpointHeader header;
  {
    const MutexLock lock(&mutex_);
    header = index_.FindOrAdd(key).header;
  }
  NIBBLE_RETURN_IF_ERROR(job.Commit(header));
  // The store has released the checkpoints that this one replaces.
  std::vector<CheckpointKey> replaced;
  {
    const MutexLock lock(&mutex_);
    index_.FindOrAdd(key).committed = true;
    replaced = index_.CommittedRivals(key);
    for (const CheckpointKey& other : replaced) index_.Remove(other);
  }
  for (const CheckpointKey& other : replaced) job.RemoveOrigin(other.step, other.attempt);
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
  work_added_.SignalAll();
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointRegistry::BeginReplica(
    const std::string& job, const ShardManifest& original) {
  const JobStore* const stored = FindJob(job);
  if (stored == nullptr) return NothingOf(job);
  Mutex& disk = DiskOf(job);
  const MutexLock writing(&disk);
  const CheckpointKey key = {job, original.step, original.attempt};
  if (IsCommitted(key)) NIBBLE_RETURN_IF_ERROR(ReopenHere(key, disk));
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
      status = FindJob(ref.job())->store().DiscardShard(ref.step(), ref.attempt(), rank);
    }
    if (absl::IsNotFound(status)) status = absl::OkStatus();
    const MutexLock lock(&mutex_);
    if (status.ok()) index_.FindOrAdd(key).shards.erase(rank);
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

}  // namespace nibble

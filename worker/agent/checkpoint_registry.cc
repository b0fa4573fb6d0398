#include "worker/agent/checkpoint_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

}  // namespace

CheckpointRegistry::CheckpointRegistry(Options options) : options_(std::move(options)) {}

CheckpointRegistry::~CheckpointRegistry() {
  std::map<Attempt, std::unique_ptr<CheckpointHost>> hosts;
  std::vector<std::thread> threads;
  {
    const MutexLock lock(&mutex_);
    closing_ = true;
    hosts.swap(hosts_);
    for (auto& [name, job] : jobs_) threads.push_back(std::move(job.thread));
    WakeAllJobs();
  }
  settled_.SignalAll();
  for (std::thread& thread : threads) thread.join();
  hosts.clear();  // joins the hosts' threads, which return from Commit
}

void CheckpointRegistry::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void CheckpointRegistry::Changed() const {
  if (options_.changed) options_.changed();
}

JobStore* CheckpointRegistry::FindJob(const std::string& job) const {
  const MutexLock lock(&mutex_);
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : at->second.store.get();
}

void CheckpointRegistry::WakeJob(const std::string& name) {
  if (const auto at = jobs_.find(name); at != jobs_.end()) at->second.work_added.Signal();
}

void CheckpointRegistry::WakeAllJobs() {
  for (auto& [name, job] : jobs_) job.work_added.Signal();
}

Mutex& CheckpointRegistry::DiskOf(const std::string& job) const {
  const MutexLock lock(&mutex_);
  std::unique_ptr<Mutex>& disk = disks_[job];
  if (disk == nullptr) disk = std::make_unique<Mutex>();
  return *disk;
}

// --- Jobs and attempts

absl::Status CheckpointRegistry::OpenJob(const std::string& job, const std::string& directory,
                                         const StoreIdentity& identity) {
  if (FindJob(job) != nullptr) return absl::OkStatus();
  const MutexLock disk(&DiskOf(job));
  if (FindJob(job) != nullptr) return absl::OkStatus();  // opened meanwhile
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<JobStore> opened,
      JobStore::Open(job, directory, identity, options_.trash, options_.faults));
  NIBBLE_ASSIGN_OR_RETURN(ShardIndex::Checkpoints checkpoints, opened->List());
  const MutexLock lock(&mutex_);
  index_.Add(std::move(checkpoints));
  Job& added = jobs_[job];
  added.store = std::move(opened);
  added.thread = std::thread([this, job, &added] { CarryOutAnswers(job, added); });
  return absl::OkStatus();
}

absl::StatusOr<SnapshotSink*> CheckpointRegistry::OpenAttempt(const std::string& job,
                                                              int64_t attempt, int32_t ranks) {
  JobStore* const stored = FindJob(job);
  if (stored == nullptr) {
    return absl::NotFoundError(absl::StrCat("job: the store of '", job, "' is not open"));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      auto host,
      CheckpointHost::Start(
          {.store = &stored->store(),
           .attempt = attempt,
           .ranks = ranks,
           .clock = options_.clock,
           .commit =
               [this, job](const CheckpointHeader& header, std::vector<ShardManifest> shards) {
                 return Commit(job, header, std::move(shards));
               },
           .discard =
               [this, job, attempt](int64_t step, const CheckpointHeader& header) {
                 return Abandon({job, step, attempt}, header);
               },
           .make_room = [this](int64_t bytes) { return MakeRoom(bytes); },
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
  for (auto& [name, job] : jobs_) job.check_directory = true;
  WakeAllJobs();
  return index_.Report(number);
}

void CheckpointRegistry::Answered(const v1::ConnectResponse& response) {
  std::vector<std::string> lines;
  {
    const MutexLock lock(&mutex_);
    lines = index_.Answered(response);
    WakeAllJobs();
  }
  for (const std::string& line : lines) Log(line);
}

void CheckpointRegistry::TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store) {
  const MutexLock lock(&mutex_);
  index_.TakeOver(known, store);
  WakeJob(known.ref().job());
}

void CheckpointRegistry::RemoveOrphans(const std::string& job, const std::string& store_id,
                                       const v1::StoreIdentity& by) {
  const MutexLock lock(&mutex_);
  index_.RemoveOrphans(job, store_id, by);
  WakeJob(job);
}

void CheckpointRegistry::Accept(const v1::CheckpointRef& ref) {
  const MutexLock lock(&mutex_);
  index_.Accept(KeyOf(ref));
  WakeJob(ref.job());
}

bool CheckpointRegistry::IsSettled() const {
  for (const auto& [name, job] : jobs_) {
    if (job.working || job.check_directory || index_.HasWork(name)) return false;
  }
  return true;
}

void CheckpointRegistry::AwaitSettled() {
  const MutexLock lock(&mutex_);
  while (!closing_ && !IsSettled()) settled_.Wait(&mutex_);
}

}  // namespace nibble

#include "worker/agent/checkpoint_tasks.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/agent/checkpoint_upload.h"
#include "worker/agent/gang_rules.h"

namespace nibble {
namespace {

constexpr size_t kMaxTaskDetailBytes = 1900;
constexpr int kDamagedCode = 3;  // of nibble-export

std::string KeyOf(const v1::DesiredTask& task) {
  return absl::StrCat(task.ref().job(), "/", task.ref().step(), "/", task.ref().attempt(), "/",
                      task.task());
}

std::string KeyOf(const v1::DesiredReplica& replica) {
  return absl::StrCat(replica.ref().job(), "/", replica.ref().step(), "/", replica.ref().attempt(),
                      "/", replica.rank());
}

}  // namespace

CheckpointTasks::CheckpointTasks(Options options) : options_(std::move(options)) {}

CheckpointTasks::~CheckpointTasks() {
  cancellation_.Cancel();
  std::string exporter;
  {
    const MutexLock lock(&mutex_);
    exporter = exporter_;
  }
  if (!exporter.empty()) (void)options_.supervisor->Kill(exporter);
  thread_.Stop();
  uploads_.Stop();
}

void CheckpointTasks::Want(const std::vector<v1::DesiredTask>& tasks) {
  const MutexLock lock(&mutex_);
  std::set<std::string> keys;
  for (const v1::DesiredTask& task : tasks) {
    const std::string key = KeyOf(task);
    keys.insert(key);
    if (!known_.insert(key).second) continue;
    (task.kind() == v1::CHECKPOINT_TASK_KIND_UPLOAD ? uploads_ : thread_).Post([this, task] {
      Run(task);
    });
  }
  std::erase_if(reports_, [&](const auto& one) { return !keys.contains(one.first); });
  known_ = std::move(keys);
}

std::vector<v1::TaskReport> CheckpointTasks::Reports() const {
  const MutexLock lock(&mutex_);
  std::vector<v1::TaskReport> reports;
  for (const auto& [key, report] : reports_) reports.push_back(report);
  return reports;
}

void CheckpointTasks::Run(const v1::DesiredTask& task) {
  const std::string key = KeyOf(task);
  {
    const MutexLock lock(&mutex_);
    // It is no longer wanted, or was posted again and is done.
    if (!known_.contains(key) || reports_.contains(key)) return;
  }
  v1::TaskReport report = CarryOut(task);
  // Cancelled: if it is wanted again, it was posted again.
  if (cancellation_.cancelled() || report.state() == v1::CHECKPOINT_TASK_STATE_UNSPECIFIED) return;
  {
    const MutexLock lock(&mutex_);
    if (known_.contains(key)) reports_[key] = std::move(report);
  }
  if (options_.changed) options_.changed();
}

v1::TaskReport CheckpointTasks::CarryOut(const v1::DesiredTask& task) {
  v1::TaskReport report;
  *report.mutable_ref() = task.ref();
  report.set_task(task.task());
  report.set_state(v1::CHECKPOINT_TASK_STATE_FAILED);
  const CheckpointRegistry::Lease lease = options_.registry->Keep(task.ref());
  if (task.kind() == v1::CHECKPOINT_TASK_KIND_VERIFY) {
    Verify(task, report);
  } else if (task.kind() == v1::CHECKPOINT_TASK_KIND_EXPORT) {
    const absl::StatusOr<std::string> exported = Export(task);
    if (exported.ok()) report.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
    // Copies elsewhere may be intact; damage here is reported by shard, by VerifyHere.
    report.set_damaged(absl::IsDataLoss(exported.status()) && !FindDamageHere(task));
    report.set_detail(exported.ok() ? *exported : std::string(exported.status().message()));
  } else if (task.kind() == v1::CHECKPOINT_TASK_KIND_UPLOAD) {
    const absl::StatusOr<std::string> uploaded = Upload(task);
    if (uploaded.ok()) report.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
    if (absl::IsCancelled(uploaded.status())) report.clear_state();
    report.set_detail(uploaded.ok() ? *uploaded : std::string(uploaded.status().message()));
  } else {
    report.set_detail(absl::StrCat("kind: ", task.kind(), " is not a kind that this worker knows"));
  }
  // The exporter's output and file names may contain any bytes, and would end every stream to the
  // coordinator.
  report.set_detail(Utf8(report.detail().substr(0, kMaxTaskDetailBytes)));
  return report;
}

absl::Status CheckpointTasks::VerifyHere(const v1::DesiredReplica& shard, int64_t& chunks) {
  const auto reader = options_.registry->OpenShard(shard.ref(), shard.rank());
  int64_t read = 0;
  absl::Status here = reader.ok() ? (*reader)->Verify(read) : reader.status();
  chunks += read;
  if (absl::IsDataLoss(here)) {
    options_.damage->Found(shard.ref(), shard.rank(), options_.worker, here);
  }
  return here;
}

absl::Status CheckpointTasks::VerifyShard(const v1::DesiredReplica& shard, int64_t& chunks,
                                          std::vector<std::string>& notes) {
  absl::Status here = options_.registry->CrcOf(shard.ref(), shard.rank()).status();
  if (here.ok()) {
    here = VerifyHere(shard, chunks);
    if (here.ok()) return here;
    notes.push_back(absl::StrCat("the local replica is damaged: ", std::string(here.message())));
  }
  v1::DesiredReplica elsewhere = shard;
  elsewhere.clear_sources();
  for (const std::string& source : shard.sources()) {
    if (source != options_.own_address) elsewhere.add_sources(source);
  }
  if (elsewhere.sources().empty()) return here;
  const absl::Status there = options_.fetcher->Verify(elsewhere, cancellation_, notes);
  return there.ok() || absl::IsNotFound(here) || !absl::IsDataLoss(there) ? there : here;
}

bool CheckpointTasks::FindDamageHere(const v1::DesiredTask& task) {
  bool found = false;
  int64_t chunks = 0;
  for (const v1::DesiredReplica& shard : task.shards()) {
    if (!options_.registry->CrcOf(shard.ref(), shard.rank()).ok()) continue;
    found |= absl::IsDataLoss(VerifyHere(shard, chunks));
  }
  return found;
}

void CheckpointTasks::Verify(const v1::DesiredTask& task, v1::TaskReport& report) {
  int64_t chunks = 0;
  std::vector<std::string> notes;
  std::vector<std::string> reasons;
  bool damaged = false;
  for (const v1::DesiredReplica& shard : task.shards()) {
    const absl::Status status = VerifyShard(shard, chunks, notes);
    if (status.ok()) continue;
    damaged |= absl::IsDataLoss(status);
    if (reasons.size() < 3) {
      reasons.push_back(absl::StrCat("rank ", shard.rank(), ": ", std::string(status.message())));
    }
  }
  if (task.shards().empty()) reasons.push_back("shards: none are named");
  report.set_damaged(damaged);
  if (reasons.empty()) {
    report.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
    reasons.push_back(absl::StrCat("all ", task.shards_size(), " shards pass their checksums"));
  }
  reasons.insert(reasons.end(), notes.begin(), notes.end());
  report.set_detail(absl::StrJoin(reasons, "; "));
}

absl::Status CheckpointTasks::Gather(const v1::DesiredTask& task) {
  const v1::CheckpointRef& ref = task.ref();
  for (const v1::DesiredReplica& shard : task.shards()) {
    if (options_.registry->CrcOf(ref, shard.rank()).ok()) continue;
    NIBBLE_RETURN_IF_ERROR(
        options_.fetcher->Fetch(shard, /*input=*/true, cancellation_, [](int64_t) {}));
  }
  return options_.registry->MakeLoadable(ref);
}

absl::StatusOr<std::string> CheckpointTasks::Upload(const v1::DesiredTask& task) {
  NIBBLE_RETURN_IF_ERROR(Gather(task));
  // Good copies in object storage make room for this one.
  if (FindDamageHere(task)) {
    return absl::DataLossError(absl::StrCat("the copy of ", options_.worker, " is damaged"));
  }
  return UploadCheckpoint(*options_.registry,
                          absl::StrCat(options_.jobs_directory, "/", task.ref().job()), task,
                          [this, key = KeyOf(task)] {
                            if (cancellation_.cancelled()) return true;
                            const MutexLock lock(&mutex_);
                            return !known_.contains(key);
                          });
}

absl::StatusOr<std::string> CheckpointTasks::Export(const v1::DesiredTask& task) {
  NIBBLE_RETURN_IF_ERROR(options_.roots.Check("destination", task.destination()));
  NIBBLE_RETURN_IF_ERROR(Gather(task));
  NIBBLE_ASSIGN_OR_RETURN(const ProcessExit exit, RunExporter(task));
  const std::string output(absl::StripAsciiWhitespace(exit.log_tail));
  if (exit.ok()) return output;
  if (exit.signal == 0 && exit.exit_code == kDamagedCode) return absl::DataLossError(output);
  return absl::UnknownError(absl::StrCat("the exporter ", Describe(exit), ": ", output));
}

absl::StatusOr<ProcessExit> CheckpointTasks::RunExporter(const v1::DesiredTask& task) {
  const std::string directory = absl::StrCat(options_.jobs_directory, "/", task.ref().job());
  const std::string name = absl::StrCat(task.ref().job(), ".export.", task.task());
  {
    const MutexLock lock(&mutex_);
    exporter_ = name;
  }
  NIBBLE_RETURN_IF_ERROR(options_.supervisor->Start(
      {.name = name,
       .arguments = {options_.exporter, "--run", directory, "--step",
                     absl::StrCat(task.ref().step()), "--destination", task.destination()},
       .log_path = absl::StrCat(directory, "/export-", task.task(), ".log")}));
  // The destructor kills it from now on.
  if (cancellation_.cancelled()) (void)options_.supervisor->Kill(name);
  return options_.supervisor->AwaitEnd(name);
}

ReplicaKeeper::ReplicaKeeper(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

ReplicaKeeper::~ReplicaKeeper() {
  {
    const MutexLock lock(&mutex_);
    closing_ = true;
    if (cancellation_ != nullptr) cancellation_->Cancel();
  }
  changed_.SignalAll();
  thread_.join();
}

void ReplicaKeeper::Want(const std::vector<v1::DesiredReplica>& replicas) {
  {
    const MutexLock lock(&mutex_);
    std::set<std::string> keys;
    size_t place = 0;
    for (const v1::DesiredReplica& replica : replicas) {
      const std::string key = KeyOf(replica);
      keys.insert(key);
      const auto [at, is_new] = wanted_.try_emplace(
          key, Wanted{.replica = replica, .not_before = {}, .backoff = Backoff(options_.backoff)});
      if (!is_new) at->second.replica = replica;
      at->second.place = place++;
    }
    std::erase_if(wanted_, [&](const auto& wish) { return !keys.contains(wish.first); });
    if (cancellation_ != nullptr && !keys.contains(fetching_)) cancellation_->Cancel();
  }
  changed_.SignalAll();
}

const ReplicaKeeper::Wanted* ReplicaKeeper::Next() const {
  const auto due = [now = Clock::now()](const Wanted& wanted) {
    return std::pair(std::max(wanted.not_before, now), wanted.place);
  };
  const auto first =
      std::min_element(wanted_.begin(), wanted_.end(),
                       [&](const auto& a, const auto& b) { return due(a.second) < due(b.second); });
  return first == wanted_.end() ? nullptr : &first->second;
}

void ReplicaKeeper::Run() {
  while (true) {
    v1::DesiredReplica replica;
    std::shared_ptr<Cancellation> cancellation;
    {
      const MutexLock lock(&mutex_);
      if (closing_) return;
      const Wanted* const next = Next();
      if (next == nullptr) {
        changed_.Wait(&mutex_);
        continue;
      }
      if (const auto wait = next->not_before - Clock::now(); wait > Clock::duration::zero()) {
        (void)changed_.WaitFor(&mutex_, wait);
        continue;
      }
      replica = next->replica;
      fetching_ = KeyOf(replica);
      cancellation = cancellation_ = std::make_shared<Cancellation>();
    }
    const absl::StatusOr<uint32_t> held = options_.registry->CrcOf(replica.ref(), replica.rank());
    absl::Status status;
    if (!held.ok() || *held != replica.manifest_crc32c()) {
      status = options_.fetcher->Fetch(replica, /*input=*/false, *cancellation, [](int64_t) {});
    }
    if (!status.ok() && !absl::IsCancelled(status) && options_.log) {
      options_.log(absl::StrCat("a replica is not fetched yet: ", std::string(status.message())));
    }
    const MutexLock lock(&mutex_);
    cancellation_ = nullptr;
    fetching_.clear();
    const auto at = wanted_.find(KeyOf(replica));
    if (at == wanted_.end()) continue;
    // A replica that is here stays wanted until the coordinator knows of it.
    at->second.not_before = Clock::now() + at->second.backoff.Next();
    if (status.ok()) at->second.backoff.Reset();
  }
}

}  // namespace nibble

// The daemon and its coordinator: what it reports, and which answers it obeys.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files/staged_file.h"
#include "worker/agent/daemon.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/own_paths.h"

namespace nibble {

v1::ConnectRequest Daemon::Report(int64_t number) {
  v1::ConnectRequest request;
  std::shared_ptr<const DesiredState> desired;
  bool ordered = false;  // by this stream
  *request.mutable_identity() = options_.identity;
  {
    const MutexLock lock(&mutex_);
    request.set_cluster(cluster_);
    if (number == 1) desired_number_ = 0;  // a stream begins
    request.set_desired_number(desired_number_);
    ordered = desired_number_ > 0;
    desired = desired_;
  }
  std::map<std::string, int64_t> running;
  for (const std::shared_ptr<GangRunner>& gang : gangs()) {
    const PresentGang present = gang->snapshot()->present;
    const bool closing = gang->closing();  // its ranks have ended, and nobody wants it
    if (!closing) *request.add_gangs() = gang->TakeReport();
    // The last checkpoint of a gang that is not wanted may be written until the gang is closed.
    const bool removed = desired != nullptr && desired->removed().contains(present.job);
    if (closing || removed ||
        !std::all_of(present.ranks.begin(), present.ranks.end(),
                     [](const PresentRank& rank) { return HasEnded(rank.state); })) {
      running[present.job] = present.attempt;
    }
  }
  // After the gangs, so that a report with a stopped gang also names its last shards.
  std::vector<v1::ShardReport> shards = registry_->Report(number);
  const int64_t trash_version = trash_->version();
  if (const v1::StoreIdentity store = provenance_->followed(); !store.id().empty()) {
    *request.mutable_store() = store;
  }
  {
    const MutexLock lock(&mutex_);
    // The list of running jobs is sent with the shards.
    if (running != last_running_) shard_list_.Reset();
    last_running_ = running;
    if (std::exchange(trash_listed_, trash_version) != trash_version) shard_list_.Reset();
    if (shard_list_.IsDue(number, shards)) {
      request.set_all_shards(true);
      listed_in_ = number;
    }
  }
  // Another checkpoint may be committed before the gang is closed: a job that is to be removed
  // stays reported, and the order is repeated, until then.
  if (desired != nullptr) {
    for (const std::string& job : desired->removed()) {
      const v1::StoreIdentity store = provenance_->StoreOf(job);
      if (!running.contains(job) && !store.id().empty() && !SameEpoch(store, desired->store())) {
        provenance_->Forget(job);
      }
    }
  }
  if (request.all_shards()) {
    provenance_->Describe(std::move(shards), running, request);
    for (v1::TrashedShard& shard :
         trash_->List([this](const std::string& job) { return registry_->NewestAccepted(job); })) {
      *request.add_trash() = std::move(shard);
    }
  }
  for (v1::TaskReport& report : tasks_->Reports()) *request.add_tasks() = std::move(report);
  for (v1::DamagedShard& shard : damage_->Report(number, ordered)) {
    *request.add_damaged() = std::move(shard);
  }
  // What people read of them.
  for (v1::GangReport& gang : *request.mutable_gangs()) {
    gang.set_detail(paths_->Hide(gang.detail()));
    gang.set_trouble(paths_->Hide(gang.trouble()));
    for (v1::RefusedRevision& refused : *gang.mutable_refused()) {
      refused.set_reason(paths_->Hide(refused.reason()));
    }
  }
  for (v1::TaskReport& task : *request.mutable_tasks()) {
    task.set_detail(paths_->Hide(task.detail()));
  }
  for (v1::DamagedShard& shard : *request.mutable_damaged()) {
    shard.set_detail(paths_->Hide(shard.detail()));
  }
  return request;
}

bool Daemon::MayObey(const v1::StoreIdentity& store) {
  const Provenance::Verdict verdict = provenance_->Judge(store);
  std::string line;
  {
    const MutexLock lock(&mutex_);
    if (verdict == Provenance::Verdict::kNotFollowed) {
      if (std::exchange(following_, true)) return false;
    } else if (verdict == Provenance::Verdict::kOlder) {
      // The coordinator learns from the next report that its store is older.
      if (std::exchange(ignoring_, true)) return false;
      line =
          absl::StrCat("ignores the coordinator: its store ", store.id(), ", epoch ", store.epoch(),
                       ", update ", store.sequence(), ", is older than this worker has known it");
    } else {
      ignoring_ = false;
      if (!obeyed_.id().empty() && !SameEpoch(obeyed_, store)) {
        line = absl::StrCat("the coordinator has store ", store.id(), ", epoch ", store.epoch(),
                            " now; before it had ", obeyed_.id(), ", epoch ", obeyed_.epoch(),
                            ", whose orders are reported as orphans");
        shard_list_.Reset();
      }
      obeyed_ = store;
    }
  }
  if (!line.empty()) Log(line);
  if (verdict == Provenance::Verdict::kNotFollowed) {
    // The next desired state is obeyed; it arrives as the answer to the next report.
    recorder_->Post([this, store] {
      const absl::Status followed = provenance_->Follow(store);
      if (!followed.ok()) Log(std::string(followed.message()));
      {
        const MutexLock lock(&mutex_);
        following_ = false;
      }
      if (followed.ok()) report_due_ = true;
      Wake();
    });
  }
  return verdict == Provenance::Verdict::kObey;
}

void Daemon::Receive(const v1::ConnectResponse& response) {
  if (!MayObey(response.store())) return;
  RemoveOrphans(response);
  bool listed = false;
  {
    const MutexLock lock(&mutex_);
    listed = listed_in_ > 0 && response.answered() >= listed_in_;
  }
  if (listed) provenance_->Answered();
  for (const v1::DesiredReplica& known : response.replicas()) {
    registry_->TakeOver(known, response.store());
  }
  registry_->Answered(response);
  RestoreFromTrash(response);
  damage_->Answered(response.answered());
  bool new_cluster = false;
  {
    const MutexLock lock(&mutex_);
    new_cluster = cluster_.empty() && !response.cluster().empty();
    if (new_cluster) cluster_ = response.cluster();
    desired_ = std::make_shared<const DesiredState>(desired_.get(), response, home_.clock());
    desired_number_ = response.number();
    if (!response.dropped().empty()) shard_list_.Reset();
  }
  if (new_cluster) {
    recorder_->Post([this, cluster = response.cluster()] {
      const absl::Status written =
          ReplaceFile(options_.data_directory + "/cluster", cluster + "\n", options_.faults);
      if (!written.ok()) Log(std::string(written.message()));
    });
  }
  if (listed || !response.orphans().empty()) SaveRecords();
  bool record = false;
  for (const v1::JobOrder& job : response.jobs()) {
    record |= provenance_->NoteJob(job, response.store());
  }
  const auto want = [this, replicas = response.replicas(), tasks = response.tasks()] {
    replicas_->Want({replicas.begin(), replicas.end()});
    tasks_->Want({tasks.begin(), tasks.end()});
  };
  if (record) {
    // A copy is stored once whoever finds it also finds what its job is.
    recorder_->Post([this, want] {
      if (const absl::Status saved = provenance_->SaveChanges(); !saved.ok()) {
        return Log(std::string(saved.message()));
      }
      want();
    });
  } else {
    want();
  }
  Wake();
}

void Daemon::RemoveOrphans(const v1::ConnectResponse& response) {
  for (const v1::OrphanOrder& order : response.orphans()) {
    if (SameEpoch(order.store(), response.store())) continue;
    registry_->RemoveOrphans(order.job(), order.store().id(), response.store());
    const MutexLock lock(&mutex_);
    shard_list_.Reset();
  }
}

void Daemon::StreamEnded(const absl::Status& status, std::chrono::milliseconds wait) {
  metrics_->StreamLost(status);
  std::string why(status.message());
  if (options_.security.secure()) {
    const std::string expiry =
        options_.security.credentials->OwnExpiry(absl::ToUnixSeconds(absl::Now()));
    if (!expiry.empty()) absl::StrAppend(&why, " (", expiry, ")");
  }
  Log(absl::StrCat("the stream to the coordinator has ended: ", why, "; connecting again in ",
                   wait.count(), " ms"));
  if (!absl::IsAborted(status)) return;
  const MutexLock lock(&wake_mutex_);
  superseded_ = status;
  woken_.SignalAll();
}

}  // namespace nibble

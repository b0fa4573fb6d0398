// How a cluster ends: its jobs are checkpointed, its processes end, its files are removed.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cluster/identity_files.h"
#include "client/cluster/local_cluster.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/rpcs.h"
#include "common/files/files.h"
#include "common/process/spawn.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLeftoverPatience(10'000);
constexpr milliseconds kAtOnce(0);

milliseconds Left(SteadyClock::time_point deadline) {
  return std::max(kAtOnce, std::chrono::ceil<milliseconds>(deadline - SteadyClock::now()));
}

}  // namespace

void LocalCluster::DrainWorkers(const std::string& address, milliseconds grace) const {
  const CoordinatorClient client = Connect(address);
  absl::StatusOr<std::vector<v1::Worker>> workers = ListWorkers(client);
  if (!workers.ok()) return;
  for (const v1::Worker& worker : *workers) {
    // Leave drains by users alone.
    if (worker.mode() == v1::WORKER_MODE_DRAINING) continue;
    v1::DrainWorkerRequest request;
    request.set_worker(worker.identity().name());
    request.set_reason(kDownReason);
    const absl::Status status = client.Call(kDrainWorker, request).status();
    if (!status.ok()) {
      Say(absl::StrCat("cannot drain ", worker.identity().name(), ": ",
                       std::string(status.message())));
    }
  }
  const auto deadline = SteadyClock::now() + grace;
  const absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok() || record->Alive(kCoordinatorRole) == nullptr) return;
  const ProcessIdentity coordinator = record->processes.at(kCoordinatorRole).identity;
  bool reported = false;
  while (true) {
    workers = ListWorkers(client);
    if (!workers.ok()) return;
    const bool busy = std::any_of(workers->begin(), workers->end(), [](const v1::Worker& worker) {
      return worker.present() && worker.used_slots() > 0;
    });
    if (!busy) return;
    if (!std::exchange(reported, true)) Say("waiting for jobs to take a checkpoint");
    if (AwaitAnyEnd({coordinator}, std::min(kPollPause, Left(deadline)))) return;
    if (SteadyClock::now() >= deadline) {
      Say("some jobs took no checkpoint in time; they will resume from their last ones");
      return;
    }
  }
}

absl::Status LocalCluster::EndRole(const std::string& role, ClusterRecord& record,
                                   milliseconds grace) const {
  const auto at = record.processes.find(role);
  if (at == record.processes.end()) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const bool ended, EndProcess(at->second.identity, grace));
  if (!ended) Say(absl::StrCat(role, " did not end after SIGTERM and was killed"));
  // Ranks that the worker did not end.
  const std::string ranks = paths_.Data(role) + "/processes";
  if (std::filesystem::exists(ranks)) {
    NIBBLE_RETURN_IF_ERROR(KillLeftovers(ranks, kLeftoverPatience).status());
  }
  record.processes.erase(at);
  return WriteClusterRecord(paths_, record);
}

absl::Status LocalCluster::Down(milliseconds grace) {
  NIBBLE_ASSIGN_OR_RETURN(const FileLock lock, LockDirectory());
  NIBBLE_ASSIGN_OR_RETURN(ClusterRecord record, ReadRecord());
  const auto deadline = SteadyClock::now() + grace;
  if (record.Alive(kCoordinatorRole) != nullptr) {
    DrainWorkers(absl::StrCat("127.0.0.1:", record.shape.port), grace / 2);
  }
  std::vector<std::string> roles;
  for (const auto& [role, process] : record.processes) roles.push_back(role);
  // Workers first, so that the coordinator receives their last reports.
  std::stable_partition(roles.begin(), roles.end(), IsWorker);
  for (const std::string& role : roles) {
    if (const ClusterProcess* const process = record.Alive(role);
        process != nullptr && IsWorker(role)) {
      SignalProcess(process->identity, SIGTERM);
    }
  }
  for (const std::string& role : roles) {
    NIBBLE_RETURN_IF_ERROR(EndRole(role, record, Left(deadline)));
  }
  return RemoveTree(paths_.Address());
}

absl::Status LocalCluster::Purge() {
  NIBBLE_ASSIGN_OR_RETURN(const FileLock lock, LockDirectory());
  NIBBLE_ASSIGN_OR_RETURN(const ClusterRecord record, ReadRecord());
  if (record.AnyAlive()) {
    return absl::FailedPreconditionError(
        "the cluster is up and uses its data; run 'nibble cluster down' first");
  }
  // Remove only the cluster's files: the directory may have existed before. Workers of an earlier,
  // larger cluster are not in the record. The lock is last: without its file another process could
  // start the cluster while its data is removed.
  std::vector<std::string> stored = {paths_.Data(kCoordinatorRole), paths_.Data(kPrometheusRole),
                                     paths_.Data(kGrafanaRole), paths_.Logs(),
                                     LocalIdentity(paths_.directory).directory};
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(paths_.directory));
  for (const std::string& name : names) {
    if (WorkerNumber(name) > 0) stored.push_back(paths_.Data(name));
  }
  stored.insert(stored.end(), {paths_.Address(), paths_.Record(), paths_.Lock()});
  for (const std::string& path : stored) NIBBLE_RETURN_IF_ERROR(RemoveTree(path));
  std::error_code not_empty;
  std::filesystem::remove(paths_.directory, not_empty);
  return absl::OkStatus();
}

}  // namespace nibble

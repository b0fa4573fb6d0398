#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_client.h"
#include "client/cluster/detached_process.h"
#include "client/cluster/local_cluster.h"

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
  ClusterClient client(address);
  absl::StatusOr<std::vector<v1::Worker>> workers = client.Workers();
  if (!workers.ok()) return;
  for (const v1::Worker& worker : *workers) {
    // What a person has drained stays so.
    if (worker.mode() == v1::WORKER_MODE_DRAINING) continue;
    const absl::Status status = client.Drain(worker.identity().name(), kDownReason);
    if (!status.ok()) Say(absl::StrCat("drain: ", std::string(status.message())));
  }
  const auto deadline = SteadyClock::now() + grace;
  const absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok() || record->Alive(kCoordinatorRole) == nullptr) return;
  const ProcessIdentity coordinator = record->processes.at(kCoordinatorRole).identity;
  bool said = false;
  while (true) {
    workers = client.Workers();
    if (!workers.ok()) return;
    const bool busy = std::any_of(workers->begin(), workers->end(), [](const v1::Worker& worker) {
      return worker.present() && worker.used_slots() > 0;
    });
    if (!busy) return;
    if (!said) Say("waits for jobs to store where they are");
    said = true;
    if (AwaitAnyEnd({coordinator}, std::min(kPollPause, Left(deadline)))) return;
    if (SteadyClock::now() >= deadline) {
      Say("not all jobs have stored where they are; they go on from their last checkpoints");
      return;
    }
  }
}

absl::Status LocalCluster::EndRole(const std::string& role, ClusterRecord& record,
                                   milliseconds grace) const {
  const auto at = record.processes.find(role);
  if (at == record.processes.end()) return absl::OkStatus();
  const absl::StatusOr<bool> ended = EndProcess(at->second.identity, grace);
  if (!ended.ok()) return ended.status();
  if (!*ended) Say(absl::StrCat(role, " did not end as told, and was killed"));
  // Ranks of a worker that could not end them itself.
  const std::string ranks = paths_.Data(role) + "/processes";
  if (std::filesystem::exists(ranks)) {
    const auto leftovers = KillLeftovers(ranks, kLeftoverPatience);
    if (!leftovers.ok()) return leftovers.status();
  }
  record.processes.erase(at);
  return WriteClusterRecord(paths_, record);
}

absl::Status LocalCluster::Down(milliseconds grace) {
  const absl::StatusOr<ClusterLock> lock = LockDirectory();
  if (!lock.ok()) return lock.status();
  absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  const auto deadline = SteadyClock::now() + grace;
  if (record->Alive(kCoordinatorRole) != nullptr) {
    DrainWorkers(absl::StrCat("127.0.0.1:", record->shape.port), grace / 2);
  }
  std::vector<std::string> roles;
  for (const auto& [role, process] : record->processes) roles.push_back(role);
  // Workers first: what they still have to say is heard.
  std::stable_partition(roles.begin(), roles.end(), IsWorker);
  for (const std::string& role : roles) {
    if (const ClusterProcess* const process = record->Alive(role);
        process != nullptr && IsWorker(role)) {
      SignalProcess(process->identity, SIGTERM);
    }
  }
  for (const std::string& role : roles) {
    if (absl::Status status = EndRole(role, *record, Left(deadline)); !status.ok()) return status;
  }
  std::error_code error;
  std::filesystem::remove(paths_.Address(), error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("removing ", paths_.Address(), ": ", error.message()));
}

absl::Status LocalCluster::Purge() {
  const absl::StatusOr<ClusterLock> lock = LockDirectory();
  if (!lock.ok()) return lock.status();
  const absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  if (record->AnyAlive()) {
    return absl::FailedPreconditionError("the cluster is up: what it stores is in use");
  }
  // Only what is a cluster's: the directory may have been there before.
  std::vector<std::string> stored = {paths_.Record(), paths_.Address(), paths_.Logs(),
                                     paths_.Lock()};
  for (const std::string& role : record->Roles()) stored.push_back(paths_.Data(role));
  for (const std::string& path : stored) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error)
      return absl::UnavailableError(absl::StrCat("removing ", path, ": ", error.message()));
  }
  std::error_code not_empty;
  std::filesystem::remove(paths_.directory, not_empty);
  return absl::OkStatus();
}

}  // namespace nibble

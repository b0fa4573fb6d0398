#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_client.h"
#include "client/cluster/local_cluster.h"

namespace nibble {

absl::StatusOr<LocalCluster::Status> LocalCluster::Look() const {
  const absl::StatusOr<ClusterRecord> record = ReadClusterRecord(paths_);
  if (absl::IsNotFound(record.status())) {
    return absl::NotFoundError(absl::StrCat("there is no cluster in ", paths_.directory));
  }
  if (!record.ok()) return record.status();
  Status status;
  for (const std::string& role : record->Roles()) {
    const auto at = record->processes.find(role);
    status.processes.push_back(
        {.role = role,
         .alive = record->Alive(role) != nullptr,
         .process = at == record->processes.end() ? ClusterProcess() : at->second});
  }
  if (!status.processes[0].alive) return status;
  status.address = absl::StrCat("127.0.0.1:", record->shape.port);
  ClusterClient client(status.address);
  status.serves = client.Serves(kServesPatience);
  if (!status.serves) return status;
  absl::StatusOr<std::vector<v1::Worker>> workers = client.Workers();
  if (!workers.ok()) return workers.status();
  status.workers = *std::move(workers);
  absl::StatusOr<std::map<v1::JobState, int64_t>> jobs = client.JobsByState();
  if (!jobs.ok()) return jobs.status();
  status.jobs = *std::move(jobs);
  return status;
}

}  // namespace nibble

#include "client/cluster/cluster_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/local/json_text.h"
#include "client/remote/text.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {
namespace {

int64_t UptimeMs(const LocalCluster::ProcessStatus& process, int64_t now_unix_ms) {
  return process.alive ? std::max<int64_t>(0, now_unix_ms - process.process.started_unix_ms) : 0;
}

const v1::Worker* FindWorker(const LocalCluster::Status& status, const std::string& role) {
  for (const v1::Worker& worker : status.workers) {
    if (worker.identity().name() == role) return &worker;
  }
  return nullptr;
}

// What the coordinator says of the role.
std::string Remark(const LocalCluster::Status& status, const std::string& role) {
  if (role == kCoordinatorRole) return status.serves ? "serves" : "does not serve";
  const v1::Worker* const worker = FindWorker(status, role);
  if (worker == nullptr) return status.serves ? "not known" : "-";
  return absl::StrCat(
      worker->present() ? "present" : "absent",
      worker->mode() == v1::WORKER_MODE_OPEN ? "" : absl::StrCat(", ", Word(worker->mode())), ", ",
      worker->used_slots(), " of ", worker->identity().slots(), " slots used",
      worker->flags().empty() ? "" : ", flagged");
}

}  // namespace

std::string ClusterTable(const LocalCluster::Status& status, int64_t now_unix_ms) {
  std::string text =
      absl::StrCat("address      ", status.address.empty() ? "not up" : status.address, "\n\n");
  absl::StrAppendFormat(&text, "%-12s  %8s  %-12s  %s\n", "PROCESS", "PID", "UP FOR", "STATE");
  for (const LocalCluster::ProcessStatus& process : status.processes) {
    const double uptime = static_cast<double>(UptimeMs(process, now_unix_ms)) / 1000;
    absl::StrAppendFormat(&text, "%-12s  %8s  %-12s  %s\n", process.role,
                          process.alive ? absl::StrCat(process.process.identity.pid) : "-",
                          process.alive ? DurationText(uptime) : "-",
                          process.alive ? Remark(status, process.role) : "does not run");
  }
  if (!status.serves) return text;
  std::vector<std::string> counts;
  for (const auto& [state, count] : status.jobs) {
    counts.push_back(absl::StrCat(count, " ", Word(state)));
  }
  absl::StrAppend(&text, "\njobs         ", counts.empty() ? "none" : absl::StrJoin(counts, ", "),
                  "\n");
  return text;
}

std::string ClusterJson(const LocalCluster::Status& status, int64_t now_unix_ms) {
  nlohmann::ordered_json processes = nlohmann::ordered_json::array();
  for (const LocalCluster::ProcessStatus& process : status.processes) {
    nlohmann::ordered_json one = {{"role", process.role}, {"alive", process.alive}};
    if (process.alive) {
      one["pid"] = process.process.identity.pid;
      one["uptime_seconds"] = static_cast<double>(UptimeMs(process, now_unix_ms)) / 1000;
    }
    if (const v1::Worker* const worker = FindWorker(status, process.role); worker != nullptr) {
      one["present"] = worker->present();
      one["mode"] = Word(worker->mode());
      one["slots"] = worker->identity().slots();
      one["used_slots"] = worker->used_slots();
    }
    processes.push_back(std::move(one));
  }
  nlohmann::ordered_json jobs = nlohmann::ordered_json::object();
  for (const auto& [state, count] : status.jobs) jobs[Word(state)] = count;
  const nlohmann::ordered_json whole = {{"address", status.address},
                                        {"serves", status.serves},
                                        {"processes", std::move(processes)},
                                        {"jobs", std::move(jobs)}};
  return JsonText(whole);
}

}  // namespace nibble

#include "client/cluster/cluster_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/enum_words.h"
#include "client/shell/output.h"
#include "common/identity/expiry.h"
#include "common/text/table.h"
#include "common/text/text.h"
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

// The role's state as the coordinator reports it.
std::string Remark(const LocalCluster::Status& status, const std::string& role) {
  if (const auto url = status.urls.find(role); url != status.urls.end()) return url->second;
  if (role == kCoordinatorRole) return status.serves ? "serves" : "does not serve";
  const v1::Worker* const worker = FindWorker(status, role);
  if (worker == nullptr) return status.serves ? "unknown to the coordinator" : "-";
  return absl::StrCat(
      worker->present() ? "present" : "absent",
      worker->mode() == v1::WORKER_MODE_OPEN ? "" : absl::StrCat(", ", Word(worker->mode())), ", ",
      worker->used_slots(), " of ", worker->identity().slots(), " slots used",
      worker->flags().empty() ? "" : ", flagged");
}

// Those that expire soon, or else the one that expires first.
std::string CertificateLines(const std::vector<CertificateExpiry>& certificates,
                             int64_t now_unix_s) {
  const auto first =
      std::min_element(certificates.begin(), certificates.end(),
                       [](const auto& a, const auto& b) { return a.unix_s < b.unix_s; });
  if (first == certificates.end()) return "";
  std::string text;
  for (const CertificateExpiry& one : certificates) {
    const bool soon = ExpiresSoon(one, now_unix_s);
    if (!soon && (&one != &*first)) continue;
    absl::StrAppend(&text, text.empty() ? "\ncertificates " : "             ",
                    soon ? "" : "the first to expire: ", ExpiryText(one, now_unix_s),
                    soon ? "; renew it with 'nibble cluster certs'" : "", "\n");
  }
  return text;
}

}  // namespace

std::string ClusterTable(const LocalCluster::Status& status, int64_t now_unix_ms) {
  TextTable table({"PROCESS", "PID", "UP FOR", "STATE"});
  for (const LocalCluster::ProcessStatus& process : status.processes) {
    const double uptime = static_cast<double>(UptimeMs(process, now_unix_ms)) / 1000;
    table.Add({process.role, process.alive ? absl::StrCat(process.process.identity.pid) : "-",
               process.alive ? DurationText(uptime) : "-",
               process.alive ? Remark(status, process.role) : "does not run"});
  }
  std::string text =
      absl::StrCat("address      ", status.address.empty() ? "not up" : status.address, "\n\n",
                   table.Text(), CertificateLines(status.certificates, now_unix_ms / 1000));
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
    if (const auto url = status.urls.find(process.role); url != status.urls.end()) {
      one["url"] = url->second;
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
  nlohmann::ordered_json certificates = nlohmann::ordered_json::object();
  for (const CertificateExpiry& one : status.certificates) {
    certificates[one.certificate] = {{"path", one.path}, {"expires_unix_seconds", one.unix_s}};
  }
  const nlohmann::ordered_json json = {{"address", status.address},
                                       {"serves", status.serves},
                                       {"certificates", std::move(certificates)},
                                       {"processes", std::move(processes)},
                                       {"jobs", std::move(jobs)}};
  return JsonText(json);
}

}  // namespace nibble

#include "client/cluster/cluster_files.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/process/process.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr size_t kMaxRecordBytes = size_t{1} << 20;

template <class T>
bool Get(const json& object, const char* field, T& value) {
  const auto at = object.find(field);
  if (at == object.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!at->is_string()) return false;
  } else {
    if (!at->is_number_integer()) return false;
  }
  value = at->get<T>();
  return true;
}

bool GetProcess(const json& from, ClusterProcess& process) {
  return from.is_object() && Get(from, "pid", process.identity.pid) &&
         Get(from, "start_ticks", process.identity.start_ticks) &&
         Get(from, "boot_id", process.identity.boot_id) &&
         Get(from, "started_unix_ms", process.started_unix_ms) &&
         Get(from, "earlier_incarnation", process.earlier_incarnation) && process.identity.pid > 1;
}

}  // namespace

std::string WorkerRole(int number) { return absl::StrCat("worker-", number); }

int WorkerNumber(absl::string_view name) {
  int number = 0;
  const bool numbered =
      absl::ConsumePrefix(&name, "worker-") && absl::SimpleAtoi(name, &number) && number > 0;
  return numbered ? number : 0;
}

std::vector<std::string> ClusterRecord::Roles() const {
  std::vector<std::string> roles = {kCoordinatorRole};
  for (int number = 1; number <= shape.workers; ++number) roles.push_back(WorkerRole(number));
  return roles;
}

const ClusterProcess* ClusterRecord::Alive(const std::string& role) const {
  const auto at = processes.find(role);
  return at != processes.end() && IsAlive(at->second.identity) ? &at->second : nullptr;
}

bool ClusterRecord::AnyAlive() const {
  for (const auto& [role, process] : processes) {
    if (Alive(role) != nullptr) return true;
  }
  return false;
}

absl::StatusOr<ClusterRecord> ReadClusterRecord(const ClusterPaths& paths) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(paths.Record(), kMaxRecordBytes));
  const json read = json::parse(text, nullptr, false);
  ClusterRecord record;
  ClusterShape& shape = record.shape;
  bool whole = read.is_object() && Get(read, "workers", shape.workers) &&
               Get(read, "slots", shape.slots) && Get(read, "device", shape.device) &&
               Get(read, "port", shape.port) && read.contains("processes") &&
               read["processes"].is_object();
  if (whole) {
    for (const auto& [role, process] : read["processes"].items()) {
      whole = whole && GetProcess(process, record.processes[role]);
    }
  }
  // Not in records of earlier versions.
  if (whole && read.contains("dashboards")) {
    const json& dashboards = read["dashboards"];
    whole = dashboards.is_object() &&
            Get(dashboards, "coordinator_http", record.dashboards.coordinator_http) &&
            Get(dashboards, "prometheus", record.dashboards.prometheus) &&
            Get(dashboards, "grafana", record.dashboards.grafana);
  }
  if (whole) return record;
  return absl::DataLossError(absl::StrCat(paths.Record(), ": not a valid record of a cluster"));
}

absl::Status WriteClusterRecord(const ClusterPaths& paths, const ClusterRecord& record) {
  json processes = json::object();
  for (const auto& [role, process] : record.processes) {
    processes[role] = {{"pid", process.identity.pid},
                       {"start_ticks", process.identity.start_ticks},
                       {"boot_id", process.identity.boot_id},
                       {"started_unix_ms", process.started_unix_ms},
                       {"earlier_incarnation", process.earlier_incarnation}};
  }
  const json whole = {{"workers", record.shape.workers},
                      {"slots", record.shape.slots},
                      {"device", record.shape.device},
                      {"port", record.shape.port},
                      {"dashboards",
                       {{"coordinator_http", record.dashboards.coordinator_http},
                        {"prometheus", record.dashboards.prometheus},
                        {"grafana", record.dashboards.grafana}}},
                      {"processes", std::move(processes)}};
  return ReplaceFile(paths.Record(), whole.dump(2) + "\n");
}

}  // namespace nibble

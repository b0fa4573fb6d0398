#include "client/cluster/cluster_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cluster/local_processes.h"
#include "common/staged_file.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using nlohmann::json;

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <class T>
bool Take(const json& object, const char* field, T& value) {
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

bool TakeProcess(const json& from, ClusterProcess& process) {
  return from.is_object() && Take(from, "pid", process.identity.pid) &&
         Take(from, "start_ticks", process.identity.start_ticks) &&
         Take(from, "boot_id", process.identity.boot_id) &&
         Take(from, "started_unix_ms", process.started_unix_ms) &&
         Take(from, "earlier_incarnation", process.earlier_incarnation) && process.identity.pid > 1;
}

}  // namespace

std::string DefaultClusterDirectory() {
  if (const char* const home = std::getenv("NIBBLE_HOME"); home != nullptr && *home != '\0') {
    return absl::StrCat(home, "/cluster");
  }
  const char* const home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.nibble/cluster");
}

std::string WorkerRole(int number) { return absl::StrCat("worker-", number); }

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
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadWhole(paths.Record()));
  const json read = json::parse(text, nullptr, false);
  ClusterRecord record;
  ClusterShape& shape = record.shape;
  bool whole = read.is_object() && Take(read, "workers", shape.workers) &&
               Take(read, "slots", shape.slots) && Take(read, "device", shape.device) &&
               Take(read, "port", shape.port) && read.contains("processes") &&
               read["processes"].is_object();
  if (whole) {
    for (const auto& [role, process] : read["processes"].items()) {
      whole = whole && TakeProcess(process, record.processes[role]);
    }
  }
  if (whole) return record;
  return absl::DataLossError(absl::StrCat(paths.Record(), ": is no record of a cluster"));
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
                      {"processes", std::move(processes)}};
  return WriteStaged(paths.Record(), whole.dump(2) + "\n");
}

absl::StatusOr<std::string> ReadClusterAddress(const std::string& directory) {
  const std::string path = ClusterPaths{directory}.Address();
  std::ifstream file(path);
  std::string line;
  if (std::getline(file, line) && !line.empty()) return line;
  return absl::NotFoundError(absl::StrCat("no cluster is up: ", path, " is not there"));
}

absl::StatusOr<ClusterLock> ClusterLock::Take(const ClusterPaths& paths) {
  const int file = open(paths.Lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (file >= 0 && flock(file, LOCK_EX) == 0) return ClusterLock(file);
  const absl::Status status =
      absl::UnavailableError(absl::StrCat("locking ", paths.Lock(), ": ", std::strerror(errno)));
  if (file >= 0) close(file);
  return status;
}

ClusterLock::~ClusterLock() {
  if (file_ >= 0) close(file_);
}

ClusterLock::ClusterLock(ClusterLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

}  // namespace nibble

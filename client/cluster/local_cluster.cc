#include "client/cluster/local_cluster.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cluster/identity_files.h"
#include "client/cluster/local_processes.h"
#include "client/remote/client_access.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/rpcs.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/process/spawn.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kClusterName[] = "local";
constexpr char kUpReason[] = "the cluster is up again";

constexpr absl::Duration kServesPatience = absl::Milliseconds(500);

// The worker's incarnation, which it writes before it first connects; 0: none yet.
int64_t IncarnationOf(const std::string& data) {
  std::ifstream file(data + "/incarnation");
  std::string line;
  int64_t incarnation = 0;
  if (!std::getline(file, line) || !absl::SimpleAtoi(line, &incarnation)) return 0;
  return incarnation;
}

// The requested shape; FailedPrecondition if the running cluster cannot be changed to it.
absl::StatusOr<ClusterShape> Reshape(const ClusterShape& is, const LocalCluster::Wish& wish,
                                     bool runs) {
  ClusterShape shape = is;
  shape.slots = wish.slots.value_or(is.slots);
  shape.device = wish.device.value_or(is.device);
  if (shape.device == "gpu") shape.device = "cuda";  // its other name
  const bool new_to_cards = shape.device == "cuda" && is.device != "cuda";
  shape.workers = wish.workers.value_or(new_to_cards ? 1 : is.workers);
  if (wish.port.value_or(0) != 0) shape.port = *wish.port;
  ClusterShape grown = is;
  grown.workers = std::max(is.workers, shape.workers);
  if (!runs || shape == grown) return shape;
  return absl::FailedPreconditionError(absl::StrCat(
      "the cluster is up with ", is.workers, " workers of ", is.slots, " slots (", is.device,
      ") on port ", is.port, "; requested: ", shape.workers, " of ", shape.slots, " (",
      shape.device, ") on port ", shape.port, "; run 'nibble cluster down' first"));
}

}  // namespace

LocalCluster::LocalCluster(Options options)
    : options_(std::move(options)), paths_{options_.directory} {}

void LocalCluster::Say(const std::string& line) const {
  if (options_.say) options_.say(line);
}

absl::StatusOr<FileLock> LocalCluster::LockDirectory() const {
  while (true) {
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(paths_.Logs()));
    NIBBLE_ASSIGN_OR_RETURN(FileLock lock, FileLock::Acquire(paths_.Lock()));
    // Purge removes the file while others wait for it.
    if (lock.IsInPlace()) return lock;
  }
}

absl::StatusOr<ClusterRecord> LocalCluster::ReadRecord() const {
  absl::StatusOr<ClusterRecord> record = ReadClusterRecord(paths_);
  if (absl::IsNotFound(record.status())) return ClusterRecord();
  return record;
}

bool LocalCluster::IsSecure() const {
  return std::filesystem::exists(LocalIdentity(paths_.directory).Certificate(kClientIdentity));
}

absl::Status LocalCluster::PrepareIdentity(const Wish& wish, const ClusterRecord& record) const {
  if (!IsSecure()) {
    if (!wish.secure) return absl::OkStatus();
    if (record.AnyAlive()) {
      return absl::FailedPreconditionError(
          "secure: the cluster is up without TLS; run 'nibble cluster down' first");
    }
  }
  IdentityWish identity = {
      .clients = {kClientIdentity}, .hosts = {"localhost", "127.0.0.1", "::1"}, .missing = true};
  for (const std::string& role : record.Roles()) {
    if (IsWorker(role)) identity.workers.push_back(role);
  }
  return IssueIdentityFiles(LocalIdentity(paths_.directory).directory, identity,
                            absl::ToUnixSeconds(absl::Now()))
      .status();
}

CoordinatorClient LocalCluster::Connect(const std::string& address) const {
  absl::StatusOr<ClientAccess> access = LocalAccess(paths_.directory);
  if (!access.ok()) Say(std::string(access.status().message()));
  return CoordinatorClient({.server = address,
                            .fails_at_once = true,
                            .access = access.ok() ? *std::move(access) : ClientAccess(),
                            .author = AuthorName()});
}

absl::StatusOr<std::vector<v1::Worker>> LocalCluster::ListWorkers(const CoordinatorClient& client) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListWorkersResponse all, client.CallAllPages(kListWorkers));
  return std::vector<v1::Worker>(all.workers().begin(), all.workers().end());
}

std::vector<std::string> LocalCluster::Arguments(const std::string& role,
                                                 const ClusterRecord& record) const {
  const ClusterShape& shape = record.shape;
  const std::string address = absl::StrCat("127.0.0.1:", shape.port);
  std::vector<std::string> arguments;
  if (!IsWorker(role)) {
    arguments = {options_.programs.coordinator,
                 "--store",
                 paths_.Data(role),
                 "--cluster",
                 kClusterName,
                 "--listen",
                 address};
    if (record.dashboards.coordinator_http != 0) {
      arguments.insert(arguments.end(),
                       {"--http", absl::StrCat("127.0.0.1:", record.dashboards.coordinator_http),
                        "--accept-alerts"});
      if (IsSecure()) {
        arguments.insert(arguments.end(),
                         {"--alerts-token-file", LocalIdentity(paths_.directory).AlertToken()});
      }
    }
  } else {
    arguments = {options_.programs.worker,
                 "--coordinator",
                 options_.reach ? options_.reach(role, address) : address,
                 "--data",
                 paths_.Data(role),
                 "--name",
                 role,
                 "--slots",
                 absl::StrCat(shape.slots),
                 "--device",
                 shape.device,
                 "--trainer",
                 options_.programs.trainer,
                 "--label",
                 absl::StrCat("node=", role)};
  }
  if (IsSecure()) {
    const LocalIdentity identity(paths_.directory);
    arguments.insert(arguments.end(), {"--tls-cert", identity.Certificate(role), "--tls-key",
                                       identity.Key(role), "--tls-ca", identity.Authority()});
    if (!IsWorker(role)) {
      arguments.insert(arguments.end(), {"--bootstrap-token-file", identity.Token(), "--audit-log",
                                         paths_.Logs() + "/audit.jsonl"});
    }
  }
  const auto& more = IsWorker(role) ? options_.worker_flags : options_.coordinator_flags;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

DetachedProgram LocalCluster::ProgramOf(const std::string& role,
                                        const ClusterRecord& record) const {
  DetachedProgram program =
      IsDashboardRole(role) ? DashboardProgram(role, options_.dashboards, paths_, record.dashboards)
                            : DetachedProgram{.arguments = Arguments(role, record)};
  if (IsWorker(role) && record.shape.device == "cuda" && record.shape.workers > 1) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    program.environment["CUDA_VISIBLE_DEVICES"] =
        CardsOfWorker(WorkerNumber(role), record.shape.slots, visible == nullptr ? "" : visible);
  }
  for (const auto& [name, value] : options_.environment) program.environment[name] = value;
  program.log_path = paths_.Log(role);
  return program;
}

absl::Status LocalCluster::StartLocked(const std::string& role, ClusterRecord& record) {
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(paths_.Data(role)));
  const int64_t earlier_incarnation = IsWorker(role) ? IncarnationOf(paths_.Data(role)) : 0;
  NIBBLE_ASSIGN_OR_RETURN(const ProcessIdentity started, StartDetached(ProgramOf(role, record)));
  record.processes[role] = {.identity = started,
                            .started_unix_ms = absl::ToUnixMillis(absl::Now()),
                            .earlier_incarnation = earlier_incarnation};
  absl::Status status = WriteClusterRecord(paths_, record);
  // Do not leave a process running that has no record.
  if (!status.ok()) (void)EndProcess(started, milliseconds(0));
  return status;
}

bool LocalCluster::IsReady(const std::string& role, const ClusterRecord& record) const {
  const CoordinatorClient client = Connect(absl::StrCat("127.0.0.1:", record.shape.port));
  if (!IsWorker(role)) return client.Serves(kServesPatience);
  // A coordinator that has just started may still list the worker's previous incarnation as
  // present.
  const int64_t incarnation = IncarnationOf(paths_.Data(role));
  if (incarnation <= record.processes.at(role).earlier_incarnation) return false;
  const absl::StatusOr<std::vector<v1::Worker>> workers = ListWorkers(client);
  if (!workers.ok()) return false;
  return std::any_of(workers->begin(), workers->end(), [&](const v1::Worker& worker) {
    return worker.identity().name() == role && worker.present() &&
           worker.identity().incarnation() == incarnation;
  });
}

absl::Status LocalCluster::NotReady(absl::StatusCode code, const std::string& role,
                                    const std::string& what) const {
  const std::string log = paths_.Log(role);
  return absl::Status(code,
                      absl::StrCat(role, " ", what, "; the end of ", log, ":\n", LogTail(log)));
}

absl::Status LocalCluster::AwaitReady(const std::string& role, const ClusterRecord& record) const {
  const auto deadline = SteadyClock::now() + options_.patience;
  // Without the coordinator no worker becomes present.
  std::vector<ProcessIdentity> needed;
  for (const std::string& one : {std::string(kCoordinatorRole), role}) {
    const auto at = record.processes.find(one);
    if (at == record.processes.end()) {
      return NotReady(absl::StatusCode::kFailedPrecondition, one, "does not run");
    }
    needed.push_back(at->second.identity);
  }
  while (!IsReady(role, record)) {
    if (AwaitAnyEnd(needed, kPollPause)) {
      const bool own = record.Alive(role) == nullptr;
      return NotReady(absl::StatusCode::kInternal, own ? role : kCoordinatorRole, "has ended");
    }
    if (SteadyClock::now() >= deadline) {
      return NotReady(absl::StatusCode::kDeadlineExceeded, role,
                      absl::StrCat("is not ready after ", options_.patience.count(), " ms"));
    }
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::DrainMissing(const std::string& address,
                                        const std::vector<std::string>& roles) const {
  const CoordinatorClient client = Connect(address);
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, ListWorkers(client));
  for (const v1::Worker& worker : workers) {
    const std::string& name = worker.identity().name();
    if (worker.mode() != v1::WORKER_MODE_OPEN || WorkerNumber(name) == 0 ||
        absl::c_linear_search(roles, name) || !std::filesystem::exists(paths_.Data(name))) {
      continue;
    }
    v1::DrainWorkerRequest request;
    request.set_worker(name);
    request.set_reason(kDownReason);
    NIBBLE_RETURN_IF_ERROR(client.Call(kDrainWorker, request).status());
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::OpenWorkers(const std::string& address,
                                       const std::vector<std::string>& roles) const {
  const CoordinatorClient client = Connect(address);
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, ListWorkers(client));
  for (const v1::Worker& worker : workers) {
    if (worker.mode() != v1::WORKER_MODE_DRAINING || worker.mode_reason() != kDownReason ||
        !absl::c_linear_search(roles, worker.identity().name())) {
      continue;
    }
    v1::UncordonWorkerRequest request;
    request.set_worker(worker.identity().name());
    request.set_reason(kUpReason);
    NIBBLE_RETURN_IF_ERROR(client.Call(kUncordonWorker, request).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> LocalCluster::StartDashboards(ClusterRecord& record) {
  NIBBLE_RETURN_IF_ERROR(WriteDashboardFiles(
      paths_, record.dashboards, IsSecure() ? LocalIdentity(paths_.directory).AlertToken() : ""));
  size_t started = 0;
  for (const std::string role : {kPrometheusRole, kGrafanaRole}) {
    if (role == kGrafanaRole && options_.dashboards.grafana.empty()) continue;
    if (record.Alive(role) == nullptr) {
      Say(absl::StrCat("starting ", role));
      NIBBLE_RETURN_IF_ERROR(StartLocked(role, record));
      ++started;
    }
    NIBBLE_RETURN_IF_ERROR(AwaitListening(role, record));
  }
  return started;
}

absl::Status LocalCluster::AwaitListening(const std::string& role,
                                          const ClusterRecord& record) const {
  const auto deadline = SteadyClock::now() + options_.patience;
  const int port = DashboardPort(role, record.dashboards);
  const ProcessIdentity process = record.processes.at(role).identity;
  while (!IsListening(port)) {
    if (AwaitAnyEnd({process}, kPollPause)) {
      return NotReady(absl::StatusCode::kInternal, role, "has ended");
    }
    if (SteadyClock::now() >= deadline) {
      return NotReady(absl::StatusCode::kDeadlineExceeded, role,
                      absl::StrCat("does not listen after ", options_.patience.count(), " ms"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalCluster::Before> LocalCluster::Up(const Wish& wish) {
  NIBBLE_ASSIGN_OR_RETURN(const FileLock lock, LockDirectory());
  NIBBLE_ASSIGN_OR_RETURN(ClusterRecord record, ReadRecord());
  const bool any = record.AnyAlive();
  absl::StatusOr<ClusterShape> shape = Reshape(record.shape, wish, any);
  if (!shape.ok()) return shape.status();
  const bool coordinator_runs = record.Alive(kCoordinatorRole) != nullptr;
  // Running workers use the port, so it does not change.
  const bool fixed = any || wish.port.value_or(0) != 0;
  if (shape->port == 0 || (!fixed && !IsPortFree(shape->port))) {
    NIBBLE_ASSIGN_OR_RETURN(const int port, ChooseFreePort());
    shape->port = port;
  }
  record.shape = *std::move(shape);
  NIBBLE_RETURN_IF_ERROR(PrepareIdentity(wish, record));
  if (!coordinator_runs && !IsPortFree(record.shape.port)) {
    return absl::FailedPreconditionError(
        absl::StrCat("port: another program listens on 127.0.0.1:", record.shape.port,
                     "; choose another one with --port"));
  }
  if (wish.dashboards) {
    NIBBLE_RETURN_IF_ERROR(ChooseDashboardPorts(record));
  } else if (!coordinator_runs && record.Alive(kPrometheusRole) == nullptr) {
    record.dashboards.coordinator_http = 0;
  }
  const std::string address = absl::StrCat("127.0.0.1:", record.shape.port);
  size_t started = 0;
  const std::vector<std::string> roles = record.Roles();
  for (const std::string& role : roles) {
    if (record.Alive(role) == nullptr) {
      Say(absl::StrCat("starting ", role));
      NIBBLE_RETURN_IF_ERROR(StartLocked(role, record));
      ++started;
    }
    // Start all workers once the coordinator serves, then wait for them together.
    if (IsWorker(role)) continue;
    NIBBLE_RETURN_IF_ERROR(AwaitReady(role, record));
    NIBBLE_RETURN_IF_ERROR(DrainMissing(address, roles));
    NIBBLE_RETURN_IF_ERROR(ReplaceFile(paths_.Address(), address + "\n"));
  }
  for (const std::string& role : roles) {
    NIBBLE_RETURN_IF_ERROR(AwaitReady(role, record));
  }
  NIBBLE_RETURN_IF_ERROR(OpenWorkers(address, roles));
  if (wish.dashboards) {
    NIBBLE_ASSIGN_OR_RETURN(const size_t dashboards, StartDashboards(record));
    started += dashboards;
  }
  return started == 0 ? Before::kAll : any ? Before::kSome : Before::kNothing;
}

absl::Status LocalCluster::Start(const std::string& role) {
  NIBBLE_ASSIGN_OR_RETURN(const FileLock lock, LockDirectory());
  NIBBLE_ASSIGN_OR_RETURN(ClusterRecord record, ReadRecord());
  if (record.Alive(role) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("role: ", role, " runs"));
  }
  return StartLocked(role, record);
}

absl::Status LocalCluster::Signal(const std::string& role, int signal) {
  NIBBLE_ASSIGN_OR_RETURN(const ClusterRecord record, ReadRecord());
  const ClusterProcess* const process = record.Alive(role);
  if (process == nullptr) return absl::NotFoundError(absl::StrCat("role: ", role, " does not run"));
  SignalProcess(process->identity, signal);
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitEnd(const std::string& role, milliseconds patience) {
  NIBBLE_ASSIGN_OR_RETURN(const ClusterRecord record, ReadRecord());
  const ClusterProcess* const process = record.Alive(role);
  if (process == nullptr || AwaitAnyEnd({process->identity}, patience)) {
    (void)record.Alive(role);  // reaps the process if it is our child
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("role: ", role, " still runs after ", patience.count(), " ms"));
}

absl::Status LocalCluster::AwaitReady(const std::string& role) {
  NIBBLE_ASSIGN_OR_RETURN(const ClusterRecord record, ReadRecord());
  return AwaitReady(role, record);
}

absl::StatusOr<LocalCluster::Status> LocalCluster::GetStatus() const {
  const absl::StatusOr<ClusterRecord> record = ReadClusterRecord(paths_);
  if (absl::IsNotFound(record.status())) {
    return absl::NotFoundError(absl::StrCat("there is no cluster in ", paths_.directory,
                                            "; run 'nibble cluster up' to start one"));
  }
  if (!record.ok()) return record.status();
  Status status;
  status.certificates = ReadIdentityExpiries(LocalIdentity(paths_.directory).directory);
  std::vector<std::string> roles = record->Roles();
  for (const char* const role : {kPrometheusRole, kGrafanaRole}) {
    if (record->processes.contains(role)) roles.push_back(role);
    if (record->Alive(role) != nullptr) {
      status.urls[role] = DashboardUrl(role, record->dashboards);
    }
  }
  for (const std::string& role : roles) {
    const auto at = record->processes.find(role);
    status.processes.push_back(
        {.role = role,
         .alive = record->Alive(role) != nullptr,
         .process = at == record->processes.end() ? ClusterProcess() : at->second});
  }
  if (!status.processes[0].alive) return status;
  status.address = absl::StrCat("127.0.0.1:", record->shape.port);
  const CoordinatorClient client = Connect(status.address);
  status.serves = client.Serves(kServesPatience);
  if (!status.serves) return status;
  NIBBLE_ASSIGN_OR_RETURN(status.workers, ListWorkers(client));
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client.CallAllPages(kListJobs));
  for (const v1::Job& job : jobs.jobs()) ++status.jobs[job.state()];
  return status;
}

}  // namespace nibble

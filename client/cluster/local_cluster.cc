#include "client/cluster/local_cluster.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cluster/cluster_client.h"
#include "client/cluster/detached_process.h"
#include "client/cluster/free_port.h"
#include "client/cluster/log_tail.h"
#include "common/staged_file.h"

namespace nibble {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kClusterName[] = "local";
constexpr char kUpReason[] = "the cluster is up again";

// A worker's number of its present life, as it noted it before it spoke to anybody; 0: none yet.
int64_t IncarnationOf(const std::string& data) {
  std::ifstream file(data + "/incarnation");
  std::string line;
  int64_t incarnation = 0;
  if (!std::getline(file, line) || !absl::SimpleAtoi(line, &incarnation)) return 0;
  return incarnation;
}

absl::Status CheckShape(const ClusterShape& shape) {
  if (shape.device != "cuda" || shape.workers == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "workers: ", shape.workers,
      " with device cuda; a machine's GPUs are the slots of one worker, so that --workers is 1"));
}

// The shape that is wanted; FailedPrecondition where what runs cannot become it.
absl::StatusOr<ClusterShape> Reshape(const ClusterShape& is, const LocalCluster::Wish& wish,
                                     bool runs) {
  ClusterShape shape = is;
  shape.workers = wish.workers.value_or(is.workers);
  shape.slots = wish.slots.value_or(is.slots);
  shape.device = wish.device.value_or(is.device);
  if (wish.port.value_or(0) != 0) shape.port = *wish.port;
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  ClusterShape grown = is;
  grown.workers = std::max(is.workers, shape.workers);
  if (!runs || shape == grown) return shape;
  return absl::FailedPreconditionError(absl::StrCat(
      "the cluster is up with ", is.workers, " workers of ", is.slots, " slots (", is.device,
      ") on port ", is.port, "; asked for are ", shape.workers, " of ", shape.slots, " (",
      shape.device, ") on port ", shape.port, ": bring it down first"));
}

}  // namespace

LocalCluster::LocalCluster(Options options)
    : options_(std::move(options)), paths_{options_.directory} {}

void LocalCluster::Say(const std::string& line) const {
  if (options_.say) options_.say(line);
}

absl::StatusOr<ClusterLock> LocalCluster::LockDirectory() const {
  std::error_code error;
  std::filesystem::create_directories(paths_.Logs(), error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("making ", paths_.Logs(), ": ", error.message()));
  }
  return ClusterLock::Take(paths_);
}

absl::StatusOr<ClusterRecord> LocalCluster::ReadRecord() const {
  absl::StatusOr<ClusterRecord> record = ReadClusterRecord(paths_);
  if (absl::IsNotFound(record.status())) return ClusterRecord();
  return record;
}

std::vector<std::string> LocalCluster::Arguments(const std::string& role,
                                                 const ClusterShape& shape) const {
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
  const auto& more = IsWorker(role) ? options_.worker_flags : options_.coordinator_flags;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

absl::Status LocalCluster::StartLocked(const std::string& role, ClusterRecord& record) {
  std::error_code error;
  std::filesystem::create_directories(paths_.Data(role), error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("making ", paths_.Data(role), ": ", error.message()));
  }
  const int64_t earlier_incarnation = IsWorker(role) ? IncarnationOf(paths_.Data(role)) : 0;
  const absl::StatusOr<ProcessIdentity> started =
      StartDetached({.arguments = Arguments(role, record.shape),
                     .environment = options_.environment,
                     .log_path = paths_.Log(role)});
  if (!started.ok()) return started.status();
  record.processes[role] = {.identity = *started,
                            .started_unix_ms = absl::ToUnixMillis(absl::Now()),
                            .earlier_incarnation = earlier_incarnation};
  absl::Status status = WriteClusterRecord(paths_, record);
  // One that nobody would find again is not to run.
  if (!status.ok()) (void)EndProcess(*started, milliseconds(0));
  return status;
}

bool LocalCluster::IsReady(const std::string& role, const ClusterRecord& record) const {
  ClusterClient client(absl::StrCat("127.0.0.1:", record.shape.port));
  if (!IsWorker(role)) return client.Serves(kServesPatience);
  // To a coordinator that has just begun the life before this one may still be present.
  const int64_t incarnation = IncarnationOf(paths_.Data(role));
  if (incarnation <= record.processes.at(role).earlier_incarnation) return false;
  const absl::StatusOr<std::vector<v1::Worker>> workers = client.Workers();
  if (!workers.ok()) return false;
  return std::any_of(workers->begin(), workers->end(), [&](const v1::Worker& worker) {
    return worker.identity().name() == role && worker.present() &&
           worker.identity().incarnation() == incarnation;
  });
}

absl::Status LocalCluster::NotReady(const std::string& role, const std::string& what) const {
  const std::string log = paths_.Log(role);
  return absl::UnavailableError(
      absl::StrCat(role, " ", what, "; the end of ", log, ":\n", LogTail(log)));
}

absl::Status LocalCluster::AwaitReady(const std::string& role, const ClusterRecord& record) const {
  const auto deadline = SteadyClock::now() + options_.patience;
  // Without the coordinator no worker is ever present.
  std::vector<ProcessIdentity> needed;
  for (const std::string& one : {std::string(kCoordinatorRole), role}) {
    const auto at = record.processes.find(one);
    if (at == record.processes.end()) return NotReady(one, "does not run");
    needed.push_back(at->second.identity);
  }
  while (!IsReady(role, record)) {
    if (AwaitAnyEnd(needed, kPollPause)) {
      const bool own = record.Alive(role) == nullptr;
      return NotReady(own ? role : kCoordinatorRole, "has ended");
    }
    if (SteadyClock::now() >= deadline) {
      return NotReady(role, absl::StrCat("is not ready after ", options_.patience.count(), " ms"));
    }
  }
  return absl::OkStatus();
}

// What Down drained takes work again. Without what a person has drained.
absl::Status LocalCluster::OpenWorkers(const std::string& address) const {
  ClusterClient client(address);
  const absl::StatusOr<std::vector<v1::Worker>> workers = client.Workers();
  if (!workers.ok()) return workers.status();
  for (const v1::Worker& worker : *workers) {
    if (worker.mode() != v1::WORKER_MODE_DRAINING || worker.mode_reason() != kDownReason) continue;
    if (absl::Status status = client.Uncordon(worker.identity().name(), kUpReason); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalCluster::Before> LocalCluster::Up(const Wish& wish) {
  const absl::StatusOr<ClusterLock> lock = LockDirectory();
  if (!lock.ok()) return lock.status();
  absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  const bool any = record->AnyAlive();
  absl::StatusOr<ClusterShape> shape = Reshape(record->shape, wish, any);
  if (!shape.ok()) return shape.status();
  const bool coordinator_runs = record->Alive(kCoordinatorRole) != nullptr;
  // Workers that run know the port, and so it stays.
  const bool stays = any || wish.port.value_or(0) != 0;
  if (shape->port == 0 || (!stays && !IsPortFree(shape->port))) {
    const absl::StatusOr<int> port = ChooseFreePort();
    if (!port.ok()) return port.status();
    shape->port = *port;
  }
  record->shape = *std::move(shape);
  if (!coordinator_runs && !IsPortFree(record->shape.port)) {
    return absl::UnavailableError(
        absl::StrCat("port: another program listens on 127.0.0.1:", record->shape.port));
  }
  const std::string address = absl::StrCat("127.0.0.1:", record->shape.port);
  size_t started = 0;
  const std::vector<std::string> roles = record->Roles();
  for (const std::string& role : roles) {
    if (record->Alive(role) == nullptr) {
      Say(absl::StrCat("starts ", role));
      if (absl::Status status = StartLocked(role, *record); !status.ok()) return status;
      ++started;
    }
    // Workers come up together, once there is somebody to report to.
    if (IsWorker(role)) continue;
    if (absl::Status status = AwaitReady(role, *record); !status.ok()) return status;
    absl::Status status = WriteStaged(paths_.Address(), address + "\n");
    if (!status.ok()) return status;
  }
  for (const std::string& role : roles) {
    if (absl::Status status = AwaitReady(role, *record); !status.ok()) return status;
  }
  if (absl::Status status = OpenWorkers(address); !status.ok()) return status;
  return started == 0 ? Before::kAll : any ? Before::kSome : Before::kNothing;
}

absl::Status LocalCluster::Start(const std::string& role) {
  const absl::StatusOr<ClusterLock> lock = LockDirectory();
  if (!lock.ok()) return lock.status();
  absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  if (record->Alive(role) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("role: ", role, " runs"));
  }
  return StartLocked(role, *record);
}

absl::Status LocalCluster::Signal(const std::string& role, int signal) {
  const absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  const ClusterProcess* const process = record->Alive(role);
  if (process == nullptr) return absl::NotFoundError(absl::StrCat("role: ", role, " does not run"));
  SignalProcess(process->identity, signal);
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitEnd(const std::string& role, milliseconds patience) {
  const absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  const ClusterProcess* const process = record->Alive(role);
  if (process == nullptr || AwaitAnyEnd({process->identity}, patience)) {
    (void)record->Alive(role);  // reaps it where it is this process's child
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("role: ", role, " still runs after ", patience.count(), " ms"));
}

absl::Status LocalCluster::AwaitReady(const std::string& role) {
  const absl::StatusOr<ClusterRecord> record = ReadRecord();
  if (!record.ok()) return record.status();
  return AwaitReady(role, *record);
}

}  // namespace nibble

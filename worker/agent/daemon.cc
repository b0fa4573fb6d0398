#include "worker/agent/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/process/process.h"
#include "common/status_macros.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/own_paths.h"
#include "worker/agent/peer_server.h"
#include "worker/trainer/report/event_log.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kLeftoverPatience(10);
// Between two looks whether ranks have written their traces.
constexpr std::chrono::milliseconds kTracePoll(50);

int64_t SteadyMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(Options options) {
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(options)));
  NIBBLE_RETURN_IF_ERROR(daemon->Prepare());
  return daemon;
}

absl::Status Daemon::CheckAddress() const {
  const std::string& address = options_.identity.address();
  // With TLS the port serves only callers that have a certificate.
  const bool authenticated = options_.security.secure();
  absl::Status status = CheckListenAddress("address", address, options_.insecure || authenticated);
  if (!status.ok() || !ParseListenAddress("address", address)->any) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("address: '", address,
                   "' means every interface; it must name one host, at which other workers reach "
                   "this one"));
}

absl::Status Daemon::Prepare() {
  NIBBLE_RETURN_IF_ERROR(CheckAddress());
  const std::string& data = options_.data_directory;
  for (const std::string& path : {data + "/jobs", data + "/processes"}) {
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(path));
  }
  NIBBLE_ASSIGN_OR_RETURN(FileLock lock, LockDataDirectory(data));
  lock_ = std::make_unique<FileLock>(std::move(lock));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t incarnation, ChooseIncarnation(data));
  options_.identity.set_incarnation(incarnation);
  NIBBLE_ASSIGN_OR_RETURN(const auto leftovers,
                          KillLeftovers(data + "/processes", kLeftoverPatience));
  for (const Leftover& leftover : leftovers) {
    if (leftover.killed) Log(absl::StrCat("killed a process of an earlier life: ", leftover.name));
  }
  // After killing processes that may still have sockets in the previous one.
  NIBBLE_ASSIGN_OR_RETURN(run_, RunDirectory::Claim(data));
  provenance_ = std::make_unique<Provenance>(data, SteadyMs, options_.faults);
  {
    const MutexLock guard(&mutex_);
    cluster_ = FirstLine(data + "/cluster");
    obeyed_ = provenance_->followed();
  }
  supervisor_ = std::make_unique<ProcessSupervisor>(
      ProcessSupervisor::Options{.record_directory = data + "/processes",
                                 .oom_kills = OomKills,
                                 .ended = [this](const std::string&) { Wake(); }});
  metrics_ = std::make_unique<WorkerMetrics>(
      WorkerMetrics::Options{.figures = options_.figures,
                             .slots = options_.identity.slots(),
                             .version = options_.identity.version(),
                             .data_directory = data,
                             .certificates = CertificateTimesOf(options_.security.credentials),
                             .clock = SteadySeconds});
  expiry_warnings_ = std::make_unique<ExpiryWarnings>(
      options_.security.credentials, [this](const std::string& line) { Log(line); });
  const auto log = [this](const std::string& line) { Log(line); };
  const auto report_soon = [this] {
    report_due_ = true;
    Wake();
  };
  cards_ = CardWatch::Start(
      {.cards = options_.cards,
       .library = options_.nvml,
       .publish =
           [this](std::vector<CardFigures> figures) { metrics_->PublishCards(std::move(figures)); },
       .log = log});
  NIBBLE_RETURN_IF_ERROR(OpenTrash(SteadyMs));
  registry_ = std::make_unique<CheckpointRegistry>(CheckpointRegistry::Options{
      .clock = SteadySeconds,
      .ordered_by = [this](const std::string& job) { return provenance_->StoreOf(job); },
      .followed = [this] { return provenance_->followed(); },
      .accepted = [this] { return provenance_->Remember(); },
      .trash = trash_.get(),
      .changed = report_soon,
      .log = log,
      .faults = options_.faults});
  damage_ = std::make_unique<DamageReports>(report_soon);
  fetcher_ = std::make_unique<ShardFetcher>(ShardFetcher::Options{
      .security = options_.security,
      .registry = registry_.get(),
      .open_job = [this](const std::string& job,
                         const StoreIdentity& identity) { return OpenJobFor(job, identity); },
      .log = log,
      .damage = damage_.get(),
      .fetched = [this](
                     double seconds, int64_t bytes,
                     const absl::Status& status) { metrics_->Fetched(seconds, bytes, status); }});
  const std::string& own = options_.collectives.address;
  const std::string ranks_host = own.empty() ? HostOf(options_.identity.address()) : own;
  meetings_ = std::make_unique<MeetingPoints>(ranks_host);
  standby_ = std::make_unique<StandbyRanks>(supervisor_.get());
  home_ = {.supervisor = supervisor_.get(),
           .registry = registry_.get(),
           .fetcher = fetcher_.get(),
           .damage = damage_.get(),
           .meetings = meetings_.get(),
           .provenance = provenance_.get(),
           .security = options_.security,
           .roots = options_.roots,
           .worker = options_.identity.name(),
           .host = ranks_host,
           .nccl_interface = options_.collectives.interface,
           .clock = SteadyMs,
           .changed = [this] { Wake(); },
           .log = log,
           .jobs_directory = data + "/jobs",
           .run_directory = run_->path(),
           .trainer = options_.trainer,
           .cards = options_.cards,
           .pins = options_.pins,
           .watchdog = options_.watchdog,
           .logs = options_.logs,
           .standby = standby_.get(),
           .keep_ranks = options_.keep_ranks,
           .faults = options_.faults};
  OpenStoredJobs();
  paths_ = std::make_shared<OwnPaths>(
      std::vector<std::string>{data, run_->path(),
                               std::filesystem::path(options_.trainer).parent_path()},
      log);
  std::vector<PeerService> services;
  services.push_back(MakeShardService(*registry_, options_.identity.name()));
  services.push_back(MakeLogs());
  services.push_back(MakeMeetingService(*meetings_));
  NIBBLE_ASSIGN_OR_RETURN(peers_,
                          PeerServer::Start(
                              options_.identity.address(), options_.security, std::move(services),
                              [this](const std::string& refusal) { Log(refusal); }, paths_));
  options_.identity.set_address(peers_->address());
  NIBBLE_ASSIGN_OR_RETURN(http_, ServeWorkerHttp(*metrics_, options_.http));
  if (http_ != nullptr) {
    options_.identity.set_http_address(AdvertisedHttp(*http_, peers_->address()));
  }
  replicas_ = std::make_unique<ReplicaKeeper>(ReplicaKeeper::Options{.registry = registry_.get(),
                                                                     .fetcher = fetcher_.get(),
                                                                     .backoff = options_.backoff,
                                                                     .log = log});
  tasks_ = std::make_unique<CheckpointTasks>(
      CheckpointTasks::Options{.registry = registry_.get(),
                               .fetcher = fetcher_.get(),
                               .damage = damage_.get(),
                               .worker = options_.identity.name(),
                               .own_address = peers_->address(),
                               .supervisor = supervisor_.get(),
                               .exporter = options_.exporter,
                               .jobs_directory = home_.jobs_directory,
                               .roots = options_.roots,
                               .changed = report_soon});
  recorder_ = std::make_unique<TaskThread>();
  link_ = std::make_unique<CoordinatorLink>(CoordinatorLink::Options{
      .target = options_.coordinator,
      .security = options_.security,
      .beat = options_.beat,
      .backoff = options_.backoff,
      .report =
          [this](int64_t number) {
            v1::ConnectRequest report = Report(number);
            metrics_->Reported(number);
            return report;
          },
      .desired =
          [this](const v1::ConnectResponse& response) {
            metrics_->Answered(response.answered(), response.lease_ms());
            Receive(response);
          },
      .lost = [this](const absl::Status& status,
                     std::chrono::milliseconds wait) { StreamEnded(status, wait); }});
  return absl::OkStatus();
}

void Daemon::OpenStoredJobs() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(home_.jobs_directory, error)) {
    const std::string name = entry.path().filename();
    const auto identity = CheckpointStore::IdentityOf(entry.path() / "checkpoints");
    absl::Status opened = identity.status();
    if (identity.ok()) opened = registry_->OpenJob(name, entry.path(), *identity);
    if (opened.ok() || absl::IsNotFound(opened)) continue;
    Log(absl::StrCat("the checkpoints of job ", name,
                     " are not reported: ", std::string(opened.message())));
  }
}

Daemon::~Daemon() {
  // Callers before the objects that they call.
  http_.reset();
  cards_.reset();
  link_.reset();
  recorder_.reset();
  tidier_.reset();
  tasks_.reset();
  replicas_.reset();
  peers_.reset();
  // At once: the gangs' threads may be waiting for the disk.
  if (supervisor_ != nullptr) {
    for (const std::string& name : supervisor_->Names()) (void)supervisor_->Kill(name);
  }
  std::vector<std::shared_ptr<GangRunner>> gangs = this->gangs();
  for (const auto& gang : gangs) gang->Abandon();
  standby_.reset();
  supervisor_.reset();
  {
    const MutexLock lock(&mutex_);
    gangs_.clear();
  }
  gangs.clear();
  registry_.reset();
}

void Daemon::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void Daemon::Wake() {
  const MutexLock lock(&wake_mutex_);
  awake_ = true;
  woken_.SignalAll();
}

absl::Status Daemon::Run(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    ActOnGangs();
    TendTrash(SteadyMs());
    if (options_.alive) options_.alive();
    expiry_warnings_->Tick(absl::ToUnixSeconds(absl::Now()));
    const auto until = std::chrono::steady_clock::now() + options_.beat;
    const MutexLock lock(&wake_mutex_);
    // A signal handler sets `stop` and cannot notify: the beat bounds the wait.
    while (!awake_ && superseded_.ok() && !woken_.WaitUntil(&wake_mutex_, until)) {
    }
    awake_ = false;
    if (!superseded_.ok()) return superseded_;
  }
  return absl::OkStatus();
}

absl::Status Daemon::OpenJobFor(const std::string& job, const StoreIdentity& identity) {
  NIBBLE_RETURN_IF_ERROR(CheckJobId(job));
  return registry_->OpenJob(job, absl::StrCat(home_.jobs_directory, "/", job), identity);
}

PeerService Daemon::MakeLogs() {
  return MakeLogService(
      [this](const std::string& job, int64_t attempt,
             int32_t rank) -> absl::StatusOr<std::shared_ptr<const RankLog>> {
        NIBBLE_RETURN_IF_ERROR(CheckJobId(job));
        const std::shared_ptr<const RankLog> log =
            supervisor_->LogOf(Gang::ProcessName(job, attempt, rank));
        if (log != nullptr) return log;
        NIBBLE_ASSIGN_OR_RETURN(
            std::unique_ptr<RankLog> ended,
            RankLog::OpenEnded(Gang::LogPath(home_.jobs_directory, job, attempt, rank)));
        return std::shared_ptr<const RankLog>(std::move(ended));
      },
      [this](const std::string& job, int64_t attempt) -> absl::StatusOr<EventFile> {
        NIBBLE_RETURN_IF_ERROR(CheckJobId(job));
        const std::string rank_0 = Gang::ProcessName(job, attempt, 0);
        return EventFile{.path = absl::StrCat(home_.jobs_directory, "/", job, "/", kEventLogFile),
                         .started = supervisor_->LogOf(rank_0) != nullptr ||
                                    std::filesystem::exists(Gang::LogPath(home_.jobs_directory, job,
                                                                          attempt, /*rank=*/0)),
                         .ended = [this, rank_0] {
                           const std::shared_ptr<const RankLog> log = supervisor_->LogOf(rank_0);
                           return log == nullptr || log->ended();
                         }};
      },
      [this](const std::string& job, int64_t attempt, int64_t steps,
             const std::function<bool()>& cancelled) {
        return TakeTrace(job, attempt, steps, cancelled);
      });
}

std::shared_ptr<GangRunner> Daemon::RunnerOf(const std::string& job, int64_t attempt) const {
  for (const std::shared_ptr<GangRunner>& gang : gangs()) {
    if (gang->origin().job == job && gang->origin().attempt == attempt) return gang;
  }
  return nullptr;
}

absl::StatusOr<std::string> Daemon::TakeTrace(const std::string& job, int64_t attempt,
                                              int64_t steps,
                                              const std::function<bool()>& cancelled) {
  NIBBLE_RETURN_IF_ERROR(CheckJobId(job));
  if (tracing_.exchange(true)) {
    return absl::ResourceExhaustedError("another trace is being taken on this worker");
  }
  const absl::Cleanup done = [this] { tracing_ = false; };
  link::v1::TraceCommand command;
  command.set_number(++last_trace_);
  command.set_steps(steps);
  command.set_path(
      absl::StrCat(home_.jobs_directory, "/", job, "/attempt-", attempt, "/trace.json"));
  (void)unlink(command.path().c_str());  // of an earlier trace that nobody read
  bool sent = false;
  while (!cancelled()) {
    const std::shared_ptr<GangRunner> gang = RunnerOf(job, attempt);
    const std::vector<RankFigures> ranks =
        gang == nullptr ? std::vector<RankFigures>() : gang->snapshot()->figures.ranks;
    bool traced = true;
    for (const RankFigures& rank : ranks) {
      const link::v1::RankReport& report = rank.report;
      if (rank.ended || report.activity() == link::v1::RANK_ACTIVITY_UNSPECIFIED) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", rank.rank, " of ", job, " is ", rank.phase, " and makes no steps to trace"));
      }
      if (report.traced() == command.number() && !report.trace_problem().empty()) {
        return absl::InternalError(report.trace_problem());
      }
      traced &= report.traced() >= command.number();
    }
    if (ranks.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("attempt ", attempt, " of ", job, " has no ranks on this worker"));
    }
    if (traced) return command.path();
    if (!std::exchange(sent, true)) gang->Trace(command);
    std::this_thread::sleep_for(kTracePoll);
  }
  return absl::CancelledError("the reader has disconnected");
}

std::vector<std::shared_ptr<GangRunner>> Daemon::gangs() const {
  const MutexLock lock(&mutex_);
  return gangs_;
}

void Daemon::SaveRecords() {
  recorder_->Post([this] {
    const absl::Status saved = provenance_->SaveChanges();
    if (!saved.ok()) Log(std::string(saved.message()));
  });
}

// --- Run's thread

GangRunner* Daemon::FindGang(const std::string& job, int64_t attempt) const {
  const MutexLock lock(&mutex_);
  for (const std::shared_ptr<GangRunner>& gang : gangs_) {
    if (gang->origin().job == job && gang->origin().attempt == attempt) return gang.get();
  }
  return nullptr;
}

void Daemon::ActOnGangs() {
  std::shared_ptr<const DesiredState> desired;
  std::vector<std::shared_ptr<GangRunner>> closed;
  {
    const MutexLock lock(&mutex_);
    desired = desired_;
    const auto end = std::stable_partition(gangs_.begin(), gangs_.end(),
                                           [](const auto& gang) { return !gang->closed(); });
    closed.assign(end, gangs_.end());
    gangs_.erase(end, gangs_.end());
  }
  if (!closed.empty()) report_due_ = true;  // their jobs run no longer
  closed.clear();                           // joins their threads
  standby_->Prune();
  std::vector<PresentGang> present;
  std::vector<GangOrigin> origins;
  for (const std::shared_ptr<GangRunner>& gang : gangs()) {
    const v1::DesiredGang* const order =
        desired == nullptr ? nullptr : desired->FindFor(gang->origin());
    if (order != nullptr) ReAttach(*order, desired->store(), *gang);
    gang->Refresh(order);
    present.push_back(gang->present());
    present.back().ours = desired == nullptr || desired->MayEnd(gang->origin());
    origins.push_back(gang->origin());
  }
  if (desired != nullptr) {
    const std::vector<WantedGang> wanted = desired->WantedGangs(origins);
    for (const AgentAction& action : Reconcile(&wanted, present, SteadyMs())) {
      CarryOut(action, *desired);
    }
  }
  PublishFigures();
}

void Daemon::PublishFigures() {
  std::string progress;
  std::vector<GangFigures> figures;
  for (const std::shared_ptr<GangRunner>& gang : gangs()) {
    if (gang->closing()) continue;
    const std::shared_ptr<const GangSnapshot> snapshot = gang->snapshot();
    const v1::GangReport& report = snapshot->report;
    absl::StrAppend(&progress, report.job(), "/", report.attempt(), "=",
                    static_cast<int>(StateOfGang(snapshot->present)), "@",
                    report.revisions().empty() ? 0 : report.revisions().rbegin()->revision(), "-",
                    snapshot->refusals, " ");
    figures.push_back(snapshot->figures);
  }
  metrics_->Publish(std::move(figures));
  // A change of phase or recipe is reported at once.
  const bool due = report_due_.exchange(false);
  if (progress == last_progress_ && !due) return;
  last_progress_ = progress;
  link_->ReportNow();
}

void Daemon::ReAttach(const v1::DesiredGang& desired, const v1::StoreIdentity& store,
                      GangRunner& gang) {
  if (desired.command() == v1::GANG_COMMAND_STOP || SameEpoch(gang.origin().store, store)) return;
  Log(absl::StrCat(gang.Name(), " is known to the store in epoch ", store.epoch(),
                   " and continues"));
  gang.Follow(store);
  gang.Record(desired);
}

void Daemon::Launch(const v1::DesiredGang& desired, const v1::StoreIdentity& store) {
  absl::Status refusal = CheckJobId(desired.job());
  if (refusal.ok() && provenance_->AttemptOf(desired.job()) >= desired.attempt() &&
      provenance_->StoreOf(desired.job()).id() == store.id() && !store.id().empty()) {
    refusal = absl::AbortedError(absl::StrCat("attempt ", provenance_->AttemptOf(desired.job()),
                                              " of ", desired.job(),
                                              " has run on this worker; no attempt up to it "
                                              "starts again"));
  }
  auto gang = std::make_shared<GangRunner>(desired, store, home_, refusal);
  const MutexLock lock(&mutex_);
  gangs_.push_back(std::move(gang));
}

void Daemon::CarryOut(const AgentAction& action, const DesiredState& desired) {
  using Kind = AgentAction::Kind;
  const v1::DesiredGang* const order = desired.Find(action.job, action.attempt);
  if (action.kind == Kind::kStart) return Launch(*order, desired.store());
  GangRunner* const gang = FindGang(action.job, action.attempt);
  if (gang == nullptr) return;
  switch (action.kind) {
    case Kind::kStart:
      break;
    case Kind::kSend:
      // Ranks that only have to stop keep the store that launched them.
      if (SameEpoch(gang->origin().store, desired.store())) gang->Record(*order);
      gang->Send(*order);
      break;
    case Kind::kDumpStacks:
      gang->DumpStacks(action.rank, action.reason);
      break;
    case Kind::kKill:
      gang->Kill(action.rank, action.reason);
      break;
    case Kind::kClose:
      gang->Close();
      break;
  }
}

}  // namespace nibble

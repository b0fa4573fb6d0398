#include "worker/agent/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/listen_address.h"
#include "common/process/process.h"
#include "common/staged_file.h"
#include "common/status_macros.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/peer_server.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kLeftoverPatience(10);

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
  // With a root certificate the port serves only callers that have a certificate.
  const bool authenticated = !options_.security.root_certificates.empty();
  absl::Status status = CheckListenAddress("address", address, options_.insecure || authenticated);
  if (!status.ok() || !ParseListenAddress("address", address)->any) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("address: '", address,
                   "' is of every interface; other workers reach this one there: name one host"));
}

absl::Status Daemon::Prepare() {
  NIBBLE_RETURN_IF_ERROR(CheckAddress());
  const std::string& data = options_.data_directory;
  for (const std::string& path : {data + "/jobs", data + "/processes"}) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return absl::UnavailableError(absl::StrCat("making ", path, ": ", error.message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(lock_, LockDataDirectory(data));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t incarnation, ChooseIncarnation(data));
  options_.identity.set_incarnation(incarnation);
  NIBBLE_ASSIGN_OR_RETURN(const auto leftovers,
                          KillLeftovers(data + "/processes", kLeftoverPatience));
  for (const Leftover& leftover : leftovers) {
    if (leftover.killed) Say(absl::StrCat("killed what an earlier life left: ", leftover.name));
  }
  // After killing processes that may still have sockets in the previous one.
  NIBBLE_ASSIGN_OR_RETURN(run_, RunDirectory::Claim(data));
  cluster_ = FirstLine(data + "/cluster");
  provenance_ = std::make_unique<Provenance>(data, SteadyMs);
  supervisor_ = std::make_unique<ProcessSupervisor>(
      ProcessSupervisor::Options{.record_directory = data + "/processes",
                                 .oom_kills = OomKills,
                                 .ended = [this](const std::string&) { Wake(); }});
  metrics_ =
      std::make_unique<WorkerMetrics>(WorkerMetrics::Options{.figures = options_.figures,
                                                             .slots = options_.identity.slots(),
                                                             .version = options_.identity.version(),
                                                             .clock = SteadySeconds});
  const auto say = [this](const std::string& line) { Say(line); };
  registry_ = std::make_unique<CheckpointRegistry>(CheckpointRegistry::Options{
      .clock = SteadySeconds,
      .run_directory = run_->path(),
      .ordered_by = [this](const std::string& job) { return provenance_->StoreOf(job); },
      .followed = [this] { return provenance_->followed(); },
      .accepted = [this] { return provenance_->Remember(); },
      .changed =
          [this] {
            shards_changed_ = true;
            Wake();
          },
      .log = say});
  damage_ = std::make_unique<DamageReports>([this] {
    shards_changed_ = true;
    Wake();
  });
  fetcher_ = std::make_unique<ShardFetcher>(ShardFetcher::Options{
      .security = options_.security,
      .registry = registry_.get(),
      .open_job = [this](const std::string& job,
                         const StoreIdentity& identity) { return OpenJobFor(job, identity); },
      .log = say,
      .damage = damage_.get(),
      .fetched = [this](
                     double seconds, int64_t bytes,
                     const absl::Status& status) { metrics_->Fetched(seconds, bytes, status); }});
  meetings_ = std::make_unique<MeetingPoints>(HostOf(options_.identity.address()));
  home_ = {.supervisor = supervisor_.get(),
           .registry = registry_.get(),
           .fetcher = fetcher_.get(),
           .damage = damage_.get(),
           .meetings = meetings_.get(),
           .security = options_.security,
           .worker = options_.identity.name(),
           .host = HostOf(options_.identity.address()),
           .clock = SteadyMs,
           .changed = [this] { Wake(); },
           .log = say,
           .jobs_directory = data + "/jobs",
           .run_directory = run_->path(),
           .trainer = options_.trainer,
           .cuda = options_.identity.hardware().device() == v1::DEVICE_CUDA,
           .watchdog = options_.watchdog,
           .logs = options_.logs};
  OpenStoredJobs();
  std::vector<PeerService> services;
  services.push_back(MakeShardService(*registry_, options_.identity.name()));
  services.push_back(MakeLogs());
  services.push_back(MakeMeetingService(*meetings_));
  NIBBLE_ASSIGN_OR_RETURN(peers_, PeerServer::Start(options_.identity.address(), options_.security,
                                                    std::move(services)));
  options_.identity.set_address(peers_->address());
  NIBBLE_ASSIGN_OR_RETURN(http_, ServeWorkerHttp(*metrics_, options_.http));
  if (http_ != nullptr) {
    options_.identity.set_http_address(AdvertisedHttp(*http_, peers_->address()));
  }
  replicas_ = std::make_unique<ReplicaKeeper>(ReplicaKeeper::Options{.registry = registry_.get(),
                                                                     .fetcher = fetcher_.get(),
                                                                     .backoff = options_.backoff,
                                                                     .log = say});
  tasks_ = std::make_unique<CheckpointTasks>(
      CheckpointTasks::Options{.registry = registry_.get(),
                               .fetcher = fetcher_.get(),
                               .damage = damage_.get(),
                               .worker = options_.identity.name(),
                               .own_address = peers_->address(),
                               .supervisor = supervisor_.get(),
                               .exporter = options_.exporter,
                               .jobs_directory = home_.jobs_directory,
                               .changed = [this] {
                                 tasks_changed_ = true;
                                 Wake();
                               }});
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
            Take(response);
          },
      .lost = [this](const absl::Status& status,
                     std::chrono::milliseconds wait) { Lost(status, wait); }});
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
    Say(absl::StrCat("the checkpoints of job ", name,
                     " are not reported: ", std::string(opened.message())));
  }
}

Daemon::~Daemon() {
  // Callers before the objects that they call.
  http_.reset();
  link_.reset();
  tasks_.reset();
  replicas_.reset();
  peers_.reset();
  for (const std::unique_ptr<Gang>& gang : gangs_) gang->Abandon();
  supervisor_.reset();
  gangs_.clear();
  registry_.reset();
  if (lock_ >= 0) close(lock_);
}

void Daemon::Say(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void Daemon::Wake() {
  {
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    dirty_ = true;
  }
  woken_.notify_all();
}

absl::Status Daemon::Run(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    Tend();
    std::unique_lock<std::mutex> lock(wake_mutex_);
    // A signal handler sets `stop` and cannot notify: the beat bounds the wait.
    woken_.wait_for(lock, options_.beat, [this] { return dirty_ || !superseded_.ok(); });
    dirty_ = false;
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
      {});
}

v1::ConnectRequest Daemon::Report(int64_t number) {
  v1::ConnectRequest request;
  *request.mutable_identity() = options_.identity;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    request.set_cluster(cluster_);
    if (number == 1) carried_out_ = 0;  // a stream begins
    request.set_desired_number(carried_out_);
    for (const std::unique_ptr<Gang>& gang : gangs_) *request.add_gangs() = gang->Report();
  }
  // After the gangs, so that a report with a stopped gang also names its last shards.
  std::vector<v1::ShardReport> shards = registry_->Report(number);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const v1::StoreIdentity store = provenance_->followed(); !store.id().empty()) {
    *request.mutable_store() = store;
  }
  std::map<std::string, int64_t> running;
  for (const std::unique_ptr<Gang>& gang : gangs_) {
    const PresentGang present = gang->Look();
    if (!std::all_of(present.ranks.begin(), present.ranks.end(),
                     [](const PresentRank& rank) { return HasEnded(rank.state); })) {
      running[gang->job()] = gang->attempt();
    }
  }
  // The list of running jobs is sent with the shards.
  if (running != last_running_) shard_news_.Dropped();
  last_running_ = running;
  if (shard_news_.AreToBeNamed(number, shards)) {
    provenance_->Describe(std::move(shards), running, request);
    request.set_all_shards(true);
    described_ = number;
  }
  for (v1::TaskReport& report : tasks_->Reports()) *request.add_tasks() = std::move(report);
  for (v1::DamagedShard& shard : damage_->Report(number)) *request.add_damaged() = std::move(shard);
  return request;
}

void Daemon::Take(const v1::ConnectResponse& response) {
  const v1::StoreIdentity before = provenance_->followed();
  bool obey = false;
  const absl::Status heard = provenance_->Hear(response.store(), obey);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!heard.ok() || !obey) {
      // The coordinator learns from the next report that its store is older; nothing changes here.
      if (!std::exchange(ignores_, true)) {
        Say(heard.ok()
                ? absl::StrCat("the coordinator's store ", response.store().id(), ", epoch ",
                               response.store().epoch(), ", update ", response.store().sequence(),
                               ", is older than what this worker has heard of it: not obeyed")
                : std::string(heard.message()));
      }
      return;
    }
    ignores_ = false;
    if (!before.id().empty() && !SameEpoch(before, response.store())) {
      Say(absl::StrCat("the coordinator has store ", response.store().id(), ", epoch ",
                       response.store().epoch(), " now; before it was ", before.id(), ", epoch ",
                       before.epoch(), ": what that has ordered is reported as orphans"));
      shard_news_.Dropped();
    }
    RemoveOrphans(response);
    if (described_ > 0 && response.answered() >= described_) provenance_->Answered();
  }
  for (const v1::DesiredReplica& known : response.replicas()) {
    registry_->TakeOver(known, response.store());
  }
  registry_->Answered(response);
  damage_->Answered(response.answered());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cluster_.empty() && !response.cluster().empty()) {
      cluster_ = response.cluster();
      const absl::Status noted = WriteStaged(options_.data_directory + "/cluster", cluster_ + "\n");
      if (!noted.ok()) Say(std::string(noted.message()));
    }
    desired_ = response;
    stop_deadlines_ = DeadlinesOf(response, stop_deadlines_, SteadyMs());
    carried_out_ = response.number();
    if (!response.dropped().empty()) shard_news_.Dropped();
  }
  replicas_->Want({response.replicas().begin(), response.replicas().end()});
  tasks_->Want({response.tasks().begin(), response.tasks().end()});
  Wake();
}

void Daemon::Lost(const absl::Status& status, std::chrono::milliseconds wait) {
  metrics_->StreamLost(status);
  Say(absl::StrCat("the stream to the coordinator has ended: ", std::string(status.message()),
                   "; trying again in ", wait.count(), " ms"));
  if (!absl::IsAborted(status)) return;
  {
    const std::lock_guard<std::mutex> lock(wake_mutex_);
    superseded_ = status;
  }
  woken_.notify_all();
}

void Daemon::RemoveOrphans(const v1::ConnectResponse& response) {
  removed_.clear();
  for (const v1::OrphanOrder& order : response.orphans()) {
    if (SameEpoch(order.store(), response.store())) continue;
    removed_.insert(order.job());
    const int64_t kept =
        order.store().id() == response.store().id() ? response.store().epoch() : -1;
    registry_->RemoveOrphans(order.job(), order.store().id(), kept);
    if (!SameEpoch(provenance_->StoreOf(order.job()), response.store())) {
      provenance_->Forget(order.job());
    }
    shard_news_.Dropped();
  }
}

bool Daemon::IsMeant(const v1::DesiredGang& wanted, const Gang& gang) const {
  return wanted.job() != gang.job() || wanted.attempt() != gang.attempt() ||
         wanted.command() == v1::GANG_COMMAND_STOP || gang.store().id().empty() ||
         gang.store().id() == desired_->store().id();
}

const v1::DesiredGang* Daemon::FindDesired(const std::string& job, int64_t attempt) const {
  for (const v1::DesiredGang& gang : desired_->gangs()) {
    if (gang.job() == job && gang.attempt() == attempt) return &gang;
  }
  return nullptr;
}

Gang* Daemon::FindGang(const std::string& job, int64_t attempt) {
  for (const std::unique_ptr<Gang>& gang : gangs_) {
    if (gang->job() == job && gang->attempt() == attempt) return gang.get();
  }
  return nullptr;
}

void Daemon::Tend() {
  std::string progress;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<WantedGang> wanted;
    if (desired_.has_value()) {
      for (const v1::DesiredGang& gang : desired_->gangs()) {
        // An order to stop ranks that are not here has no effect.
        const bool starts = gang.command() != v1::GANG_COMMAND_STOP || !gang.slots().empty();
        const Gang* const here = FindGang(gang.job(), gang.attempt());
        if (here == nullptr ? starts : IsMeant(gang, *here))
          wanted.push_back(WantedOf(gang, stop_deadlines_));
      }
    }
    std::vector<PresentGang> present;
    for (const std::unique_ptr<Gang>& gang : gangs_) {
      const v1::DesiredGang* const desired =
          desired_.has_value() ? FindDesired(gang->job(), gang->attempt()) : nullptr;
      if (desired != nullptr && IsMeant(*desired, *gang)) ReAttach(*desired, *gang);
      gang->Advance(desired);
      present.push_back(gang->Look());
      present.back().ours = !desired_.has_value() || removed_.contains(gang->job()) ||
                            SameEpoch(gang->store(), desired_->store());
    }
    const std::vector<AgentAction> actions =
        Reconcile(desired_.has_value() ? &wanted : nullptr, present, SteadyMs());
    for (const AgentAction& action : actions) CarryOut(action);
    std::vector<GangFigures> figures;
    for (const std::unique_ptr<Gang>& gang : gangs_) {
      const PresentGang now = gang->Look();
      absl::StrAppend(&progress, gang->job(), "/", gang->attempt(), "=",
                      static_cast<int>(StateOfGang(now)), "@", gang->revision(), "-",
                      gang->refusals(), " ");
      figures.push_back(gang->Figures(now));
    }
    metrics_->Publish(std::move(figures));
    const bool shards = shards_changed_.exchange(false);
    const bool tasks = tasks_changed_.exchange(false);
    if (progress == last_progress_ && !shards && !tasks) return;
    last_progress_ = progress;
  }
  // A change of phase or recipe is reported at once.
  link_->Nudge();
}

void Daemon::NoteOrder(const v1::DesiredGang& desired, const Gang& gang) {
  // Ranks that only have to stop keep the store that launched them.
  if (!SameEpoch(gang.store(), desired_->store())) return;
  const absl::Status noted = provenance_->NoteOrder(desired, desired_->store());
  if (!noted.ok()) Say(std::string(noted.message()));
}

void Daemon::ReAttach(const v1::DesiredGang& desired, Gang& gang) {
  const v1::StoreIdentity& store = desired_->store();
  if (desired.command() == v1::GANG_COMMAND_STOP || SameEpoch(gang.store(), store)) return;
  Say(absl::StrCat(gang.job(), " attempt ", gang.attempt(), " is known to the store in epoch ",
                   store.epoch(), " and continues"));
  gang.Follow(store);
  NoteOrder(desired, gang);
}

void Daemon::CarryOut(const AgentAction& action) {
  using Kind = AgentAction::Kind;
  const std::string name = absl::StrCat(action.job, " attempt ", action.attempt);
  if (action.kind == Kind::kStart) {
    const v1::DesiredGang& desired = *FindDesired(action.job, action.attempt);
    const v1::StoreIdentity& store = desired_->store();
    absl::Status status = CheckJobId(action.job);
    if (status.ok() && provenance_->AttemptOf(action.job) >= action.attempt &&
        provenance_->StoreOf(action.job).id() == store.id() && !store.id().empty()) {
      status = absl::AbortedError(
          absl::StrCat("attempt ", provenance_->AttemptOf(action.job), " of ", action.job,
                       " has run on this worker; no attempt up to it starts again"));
    }
    if (status.ok()) status = provenance_->NoteOrder(desired, store);
    if (status.ok()) {
      Say(absl::StrCat("starts ", name));
      gangs_.push_back(Gang::Launch(desired, home_));
    } else {
      Say(absl::StrCat("does not start ", name, ": ", std::string(status.message())));
      gangs_.push_back(Gang::Refuse(desired, home_, status));
    }
    gangs_.back()->Follow(store);
    return;
  }
  Gang* const gang = FindGang(action.job, action.attempt);
  if (gang == nullptr) return;
  switch (action.kind) {
    case Kind::kStart:
      break;
    case Kind::kTell:
      NoteOrder(*FindDesired(action.job, action.attempt), *gang);
      gang->Tell(*FindDesired(action.job, action.attempt));
      break;
    case Kind::kDumpStacks:
      Say(absl::StrCat(name, ", rank ", action.rank, ": ", action.reason));
      gang->DumpStacks(action.rank, action.reason);
      break;
    case Kind::kKill:
      Say(absl::StrCat(name, ", rank ", action.rank, " is killed: ", action.reason));
      gang->Kill(action.rank, action.reason);
      break;
    case Kind::kForget:
      std::erase_if(gangs_, [gang](const auto& one) { return one.get() == gang; });
      break;
  }
}

}  // namespace nibble

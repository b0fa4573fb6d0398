#include "worker/agent/gang.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/staged_file.h"
#include "job/job_spec.h"
#include "worker/agent/rank_end.h"
#include "worker/agent/timeline_json.h"
#include "worker/trainer/link/daemon_link.h"
#include "worker/trainer/link/trainer_exit.h"

namespace nibble {
namespace {

constexpr size_t kMaxDetailBytes = 1900;
constexpr size_t kMaxJobIdBytes = 80;
// The coordinator has stored those before them long ago.
constexpr size_t kMaxRevisionsReported = 128;
// A rank that has lost another one of this worker waits for that one's end: whose fault it is.
constexpr int64_t kPeerPatienceMs = 5000;
// For the last words of a rank whose process is gone. They are in its socket already.
constexpr int64_t kLastWordsMs = 1000;
constexpr char kDumpSeconds[] = "30";

GangWish WishOf(v1::GangCommand command) {
  switch (command) {
    case v1::GANG_COMMAND_PAUSE:
      return GangWish::kPause;
    case v1::GANG_COMMAND_STOP:
      return GangWish::kStop;
    default:
      return GangWish::kRun;
  }
}

ControlWord::Command CommandOf(GangWish wish) {
  switch (wish) {
    case GangWish::kPause:
      return ControlWord::Command::kPause;
    case GangWish::kStop:
      return ControlWord::Command::kStop;
    case GangWish::kRun:
      break;
  }
  return ControlWord::Command::kRun;
}

v1::RankPhase PhaseOf(RankState state) {
  switch (state) {
    case RankState::kPrepares:
      return v1::RANK_PHASE_ASSIGNED;
    case RankState::kRuns:
      return v1::RANK_PHASE_RUNNING;
    case RankState::kStands:
      return v1::RANK_PHASE_PAUSED;
    case RankState::kStopped:
      return v1::RANK_PHASE_STOPPED;
    case RankState::kSucceeded:
      return v1::RANK_PHASE_SUCCEEDED;
    case RankState::kFailed:
      break;
  }
  return v1::RANK_PHASE_FAILED;
}

v1::StepSample SampleOf(const RankNews& news) {
  v1::StepSample sample;
  sample.set_step(news.step);
  sample.set_tokens(news.tokens);
  sample.set_loss(news.loss);
  sample.set_gradient_norm(news.gradient_norm);
  sample.set_learning_rate(news.learning_rate);
  sample.set_tokens_per_second(news.tokens_per_second);
  sample.set_step_seconds(news.step_seconds);
  sample.set_revision(news.revision);
  sample.set_updated(news.updated);
  return sample;
}

// The debuggers that write the stacks of a live process, best first.
std::vector<std::string> StackDumper(pid_t pid) {
  const std::string number = absl::StrCat(pid);
  if (access("/usr/bin/eu-stack", X_OK) == 0) {
    return {"/usr/bin/timeout", kDumpSeconds, "/usr/bin/eu-stack", "-p", number};
  }
  if (access("/usr/bin/gdb", X_OK) == 0) {
    return {"/usr/bin/timeout", kDumpSeconds, "/usr/bin/gdb",       "-p", number,
            "-batch",           "-ex",        "thread apply all bt"};
  }
  // Without one, the kernel's view: in which call each thread waits.
  return {"/bin/sh", "-c",
          absl::StrCat("echo 'neither eu-stack nor gdb is installed; threads and what they wait "
                       "in:'; for t in /proc/",
                       number,
                       "/task/*; do echo \"${t##*/} $(cat $t/comm) $(cat $t/wchan) $(cat "
                       "$t/syscall)\"; done")};
}

}  // namespace

absl::Status CheckJobId(const std::string& job) {
  const bool good = !job.empty() && job.size() <= kMaxJobIdBytes && job[0] != '.' &&
                    std::all_of(job.begin(), job.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                             c == '_' || c == '.';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("job: '", job, "' is not 1 to ", kMaxJobIdBytes,
                                                 " of [A-Za-z0-9._-] with no dot first"));
}

StopDeadlines DeadlinesOf(const v1::ConnectResponse& response, const StopDeadlines& before,
                          int64_t now_ms) {
  StopDeadlines deadlines;
  for (const v1::DesiredGang& gang : response.gangs()) {
    if (gang.command() != v1::GANG_COMMAND_STOP || gang.stop_within_ms() <= 0) continue;
    const StopDeadlines::key_type key(gang.job(), gang.attempt());
    int64_t& deadline = deadlines[key] = now_ms + gang.stop_within_ms();
    if (const auto known = before.find(key); known != before.end()) {
      deadline = std::min(deadline, known->second);
    }
  }
  return deadlines;
}

WantedGang WantedOf(const v1::DesiredGang& desired, const StopDeadlines& deadlines) {
  const auto deadline = deadlines.find({desired.job(), desired.attempt()});
  const int64_t revision = desired.revisions().empty() ? 0 : desired.revisions().rbegin()->number();
  return {.job = desired.job(),
          .attempt = desired.attempt(),
          .first_rank = desired.first_rank(),
          .slots = {desired.slots().begin(), desired.slots().end()},
          .order = {.wish = WishOf(desired.command()),
                    .checkpoint_request = desired.checkpoint_request(),
                    .timeline_revision = revision},
          .stop_by_ms = deadline == deadlines.end() ? 0 : deadline->second};
}

Gang::Gang(const v1::DesiredGang& desired, const GangHome& home)
    : home_(home),
      desired_(desired),
      job_(desired.job()),
      attempt_(desired.attempt()),
      slots_(desired.slots().begin(), desired.slots().end()),
      first_step_(desired.weights_only() ? 0 : desired.resume().step()) {
  for (int i = 0; i < desired.slots_size(); ++i) {
    ranks_.push_back({.rank = desired.first_rank() + i});
  }
}

std::string Gang::ProcessName(const std::string& job, int64_t attempt, int32_t rank) {
  return absl::StrCat(job, ".", attempt, ".", rank);
}

std::string Gang::LogPath(const std::string& jobs_directory, const std::string& job,
                          int64_t attempt, int32_t rank) {
  return absl::StrCat(jobs_directory, "/", job, "/attempt-", attempt, "/rank-", rank, ".log");
}

Gang::~Gang() {
  if (abandoned_) return;
  home_.meetings->Close(job_, attempt_);
  home_.desk->CloseAttempt(job_, attempt_);
  for (const Rank& rank : ranks_) {
    if (rank.process.empty()) continue;
    // What runs is the supervisor's to end; see the class.
    (void)home_.supervisor->Forget(rank.process);
    (void)home_.supervisor->Forget(rank.process + ".stacks");
  }
}

std::unique_ptr<Gang> Gang::Launch(const v1::DesiredGang& desired, const GangHome& home) {
  std::unique_ptr<Gang> gang(new Gang(desired, home));
  const absl::Status begun = gang->Start(desired);
  if (!begun.ok()) gang->FailToStart(begun);
  return gang;
}

std::unique_ptr<Gang> Gang::Refuse(const v1::DesiredGang& desired, const GangHome& home,
                                   const absl::Status& why) {
  std::unique_ptr<Gang> gang(new Gang(desired, home));
  gang->not_started_ = true;
  gang->FailToStart(why);
  return gang;
}

void Gang::FailToStart(const absl::Status& why) {
  failed_to_start_ = true;
  Fail(absl::StrCat("cannot start: ", std::string(why.message())), CauseOf(why));
  for (Rank& rank : ranks_) {
    if (!rank.process.empty()) (void)home_.supervisor->Kill(rank.process);
  }
}

absl::Status Gang::Start(const v1::DesiredGang& desired) {
  if (absl::Status status = CheckJobId(job_); !status.ok()) return status;
  if (desired.slots().empty() || desired.first_rank() < 0 ||
      desired.first_rank() + desired.slots_size() > desired.world()) {
    return absl::InvalidArgumentError(absl::StrCat("slots: ", desired.slots_size(), " from rank ",
                                                   desired.first_rank(),
                                                   " on are not in a world of ", desired.world()));
  }
  absl::StatusOr<JobSpec> spec = ParseJobSpec(desired.spec_yaml());
  if (!spec.ok()) return WithExit(spec.status(), TrainerExit::kSpec);
  NoteModel(*spec);
  const std::string job_directory = absl::StrCat(home_.jobs_directory, "/", job_);
  directory_ = absl::StrCat(job_directory, "/attempt-", attempt_);
  std::error_code error;
  std::filesystem::create_directories(directory_ + "/rendezvous", error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("making ", directory_));
  }
  spec->output.directory = job_directory;
  spec->resources.ranks = desired.world();
  for (const NamedText& variable : spec->env) environment_[variable.name] = variable.text;
  absl::Status status = WriteStaged(directory_ + "/spec.yaml", ToYaml(*spec));
  // The trainer reads and writes under the name of its spec.
  if (status.ok()) {
    status = home_.desk->OpenJob(job_, job_directory, {.cluster = "", .job = spec->name});
  }
  if (!status.ok()) return status;
  absl::StatusOr<std::string> checkpoint_host =
      home_.desk->OpenAttempt(job_, attempt_, desired.first_rank(), desired.slots_size());
  if (!checkpoint_host.ok()) return checkpoint_host.status();
  checkpoint_host_ = *std::move(checkpoint_host);
  // The number of a gang is short; its job's name may be longer than a socket's path.
  static int64_t links = 0;
  absl::StatusOr<std::unique_ptr<LinkHost>> link =
      LinkHost::Start({.address = absl::StrCat(home_.run_directory, "/", ++links, ".link"),
                       .attempt = attempt_,
                       .first_rank = desired.first_rank(),
                       .ranks = desired.slots_size(),
                       .clock = home_.clock,
                       .changed = home_.changed});
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  Tell(desired);
  if (ended_before_start_.has_value()) return absl::OkStatus();
  const bool whole = desired.slots_size() == desired.world();
  const std::string rendezvous = whole ? absl::StrCat("file:", directory_, "/rendezvous") : "";
  if (whole && !desired.has_resume()) return StartRanks(rendezvous);
  preparation_ =
      std::make_unique<GangPreparation>(desired, rendezvous,
                                        GangPreparation::Means{.desk = home_.desk,
                                                               .fetcher = home_.fetcher,
                                                               .damage = home_.damage,
                                                               .worker = home_.worker,
                                                               .meetings = home_.meetings,
                                                               .security = home_.security,
                                                               .changed = home_.changed,
                                                               .log = home_.log});
  return absl::OkStatus();
}

void Gang::Advance(const v1::DesiredGang* desired) {
  if (preparation_ == nullptr || !prepares()) return;
  if (desired != nullptr) preparation_->Update(*desired);
  const auto result = preparation_->result();
  if (!result.has_value()) return;
  absl::Status status = result->status();
  if (status.ok()) status = StartRanks(**result);
  if (!status.ok()) FailToStart(status);
}

absl::Status Gang::StartRanks(const std::string& rendezvous) {
  started_ = true;
  for (Rank& rank : ranks_) {
    if (absl::Status status = StartRank(rank, rendezvous); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Gang::StartRank(Rank& rank, const std::string& rendezvous) {
  const int32_t local_rank = rank.rank - desired_.first_rank();
  ProcessSupervisor::Program program = {
      .name = ProcessName(job_, attempt_, rank.rank),
      .arguments = {home_.trainer, "--spec", directory_ + "/spec.yaml", "--rank",
                    absl::StrCat(rank.rank), "--world", absl::StrCat(desired_.world()),
                    "--local-rank", absl::StrCat(local_rank), "--bind", home_.host, "--rendezvous",
                    rendezvous, "--attempt", absl::StrCat(attempt_), "--checkpoint-host",
                    checkpoint_host_},
      .environment = environment_,
      .log_path = LogPath(home_.jobs_directory, job_, attempt_, rank.rank),
      .log_limits = home_.logs};
  if (desired_.has_resume()) {
    program.arguments.insert(
        program.arguments.end(),
        {"--resume-step", absl::StrCat(desired_.resume().step()), "--resume-store",
         absl::StrCat(home_.jobs_directory, "/", desired_.resume().job(), "/checkpoints")});
    if (desired_.weights_only()) program.arguments.push_back("--weights-only");
  }
  // What the spec sets never covers what the daemon says.
  program.environment[kDaemonLinkVariable] = link_->address();
  if (home_.cuda) {
    program.environment["CUDA_VISIBLE_DEVICES"] = absl::StrCat(desired_.slots(local_rank));
  }
  absl::Status status = home_.supervisor->Start(program);
  if (status.ok()) rank.process = program.name;
  return status;
}

// The first to be known counts, but one that lost a peer makes way for the peer's own.
void Gang::Fail(const std::string& detail, v1::FailureCause cause) {
  const bool makes_way = cause_ == v1::FAILURE_CAUSE_PEER && cause != v1::FAILURE_CAUSE_PEER;
  if (!detail_.empty() && !makes_way) return;
  detail_ = Printable(detail, kMaxDetailBytes);
  cause_ = cause;
}

// Of a rank that makes no step and of one that has to be killed: where others are on other workers,
// it may be one of those that it waits for.
v1::FailureCause Gang::CauseOfHang(bool waits) const {
  const bool whole = desired_.slots_size() == desired_.world();
  return waits && !whole ? v1::FAILURE_CAUSE_PEER : v1::FAILURE_CAUSE_MACHINE;
}

bool Gang::AwaitsPeers() {
  bool lost_peer = false;
  bool others_run = false;
  for (const Rank& rank : ranks_) {
    if (rank.process.empty() || rank.killed) continue;
    const auto exit = home_.supervisor->ExitOf(rank.process);
    if (!exit.ok()) continue;
    if (!exit->has_value()) {
      others_run = true;
      continue;
    }
    const RankEnd end = EndOf(rank.rank, **exit, false);
    if (end.state != RankState::kFailed) continue;
    if (end.cause != v1::FAILURE_CAUSE_PEER) return false;
    lost_peer = true;
  }
  if (!lost_peer || !others_run) return false;
  if (!peer_lost_at_ms_.has_value()) peer_lost_at_ms_ = home_.clock();
  return home_.clock() - *peer_lost_at_ms_ < kPeerPatienceMs;
}

void Gang::LookAtDump(Rank& rank) {
  if (!rank.dumping || rank.dumped) return;
  const auto ended = home_.supervisor->ExitOf(rank.process + ".stacks");
  rank.dumped = !ended.ok() || ended->has_value();
}

PresentRank Gang::LookAt(Rank& rank, const std::map<int32_t, LinkHost::Rank>& linked,
                         const std::vector<HungRank>& hung, bool awaits_peers) {
  PresentRank present = {.rank = rank.rank, .killed = rank.killed};
  if (rank.process.empty()) {
    present.state =
        prepares() ? RankState::kPrepares : ended_before_start_.value_or(RankState::kFailed);
    return present;
  }
  const auto at = linked.find(rank.rank);
  const auto exit = home_.supervisor->ExitOf(rank.process);
  if (exit.ok() && exit->has_value()) {
    if (!rank.ended_at_ms.has_value()) rank.ended_at_ms = home_.clock();
    const bool may_have_said_more = at != linked.end() && at->second.connected;
    if (may_have_said_more && home_.clock() - *rank.ended_at_ms < kLastWordsMs) {
      present.state = RankState::kRuns;
      return present;
    }
    const bool told = told_.has_value() && told_->wish == GangWish::kStop;
    const RankEnd end = EndOf(rank.rank, **exit, told);
    present.state = end.state;
    if (end.state != RankState::kFailed || rank.killed) return present;
    if (awaits_peers && end.cause == v1::FAILURE_CAUSE_PEER) {
      present.state = RankState::kRuns;
      return present;
    }
    Fail(end.detail, end.cause);
    return present;
  }
  if (at != linked.end() && at->second.news.doing == RankNews::Doing::kStanding &&
      told_.has_value() && told_->wish == GangWish::kPause) {
    present.state = RankState::kStands;
  }
  for (const HungRank& one : hung) {
    if (one.rank != rank.rank) continue;
    present.hangs = true;
    Fail(one.detail, CauseOfHang(one.waits));
  }
  present.hangs |= rank.dumping;
  LookAtDump(rank);
  present.dumped = rank.dumped;
  return present;
}

PresentGang Gang::Look() {
  PresentGang present = {.job = job_, .attempt = attempt_, .slots = slots_, .told = told_};
  std::map<int32_t, LinkHost::Rank> linked;
  if (link_ != nullptr) linked = link_->Ranks();
  if (const auto zero = linked.find(0); zero != linked.end()) {
    for (const RevisionBegun& begun : zero->second.news.begun) {
      if (begun.revision > 0) revisions_.emplace(begun.revision, begun.first_step);
    }
    while (revisions_.size() > kMaxRevisionsReported) revisions_.erase(revisions_.begin());
    for (const RevisionRefused& refused : zero->second.news.refused) {
      Refuse(refused.revision, refused.reason);
    }
  }
  const std::vector<HungRank> hung = FindHung(linked, home_.watchdog, home_.clock());
  // The rank that holds up the others is to be the one that is named.
  if (!hung.empty()) Fail(hung.front().detail, CauseOfHang(hung.front().waits));
  const bool awaits_peers = AwaitsPeers();
  for (Rank& rank : ranks_) present.ranks.push_back(LookAt(rank, linked, hung, awaits_peers));
  return present;
}

void Gang::ForgetConfirmed(const v1::DesiredGang& desired) {
  // The newest stays: it is the one in effect.
  const auto forget = [this](int64_t number) {
    if (!revisions_.empty() && number < revisions_.rbegin()->first) revisions_.erase(number);
  };
  for (const v1::RecipeRevision& revision : desired.revisions()) {
    if (revision.confirmed()) forget(revision.number());
  }
  // What lies before those it names is over.
  while (!desired.revisions().empty() && revisions_.size() > 1 &&
         revisions_.begin()->first < desired.revisions(0).number()) {
    revisions_.erase(revisions_.begin());
  }
}

void Gang::Tell(const v1::DesiredGang& desired) {
  const GangOrder order = WantedOf(desired, {}).order;
  ControlWord word = {.command = CommandOf(order.wish),
                      .checkpoint_request = order.checkpoint_request,
                      .timeline_revision = order.timeline_revision};
  if (!desired.revisions().empty()) {
    absl::StatusOr<std::string> timeline = TimelineJson(desired.revisions());
    if (timeline.ok()) {
      word.timeline = *std::move(timeline);
    } else {
      // Ranks continue under the one that they have.
      Refuse(word.timeline_revision, std::string(timeline.status().message()));
      word.timeline_revision = 0;
    }
  }
  ForgetConfirmed(desired);
  told_ = order;
  if (prepares() && order.wish == GangWish::kStop) {  // nothing is lost
    ended_before_start_ = RankState::kStopped;
    if (preparation_ != nullptr) preparation_->Cancel();
  }
  if (link_ == nullptr) return;
  link_->Ask(word);
  if (order.wish != GangWish::kStop) return;
  const std::map<int32_t, LinkHost::Rank> linked = link_->Ranks();
  for (const Rank& rank : ranks_) {
    const auto at = linked.find(rank.rank);
    const bool hears = at != linked.end() && at->second.connected;
    if (!hears && !rank.process.empty()) (void)home_.supervisor->Signal(rank.process, SIGTERM);
  }
}

void Gang::Refuse(int64_t revision, const std::string& reason) {
  if (revision <= 0 || reason.empty()) return;
  std::string text = Printable(reason.substr(0, kMaxDetailBytes), kMaxDetailBytes);
  std::replace(text.begin(), text.end(), '\n', ' ');
  refused_.emplace(revision, std::move(text));
  while (refused_.size() > kMaxRevisionsReported) refused_.erase(refused_.begin());
}

void Gang::DumpStacks(int32_t number, const std::string& reason) {
  for (Rank& rank : ranks_) {
    if (rank.rank != number || rank.dumping || rank.process.empty()) continue;
    if (detail_.empty()) {
      Fail(absl::StrCat("rank ", number, " ", reason), v1::FAILURE_CAUSE_MACHINE);
    }
    rank.dumping = true;
    const auto pid = home_.supervisor->PidOf(rank.process);
    absl::Status started = pid.status();
    if (pid.ok()) {
      started = home_.supervisor->Start(
          {.name = rank.process + ".stacks",
           .arguments = StackDumper(*pid),
           .log_path = absl::StrCat(home_.jobs_directory, "/", job_, "/attempt-", attempt_,
                                    "/rank-", number, ".stacks"),
           .log_limits = home_.logs});
    }
    // Without stacks the gang is to end no later.
    if (!started.ok()) rank.dumped = true;
  }
}

std::string Gang::Trouble(const std::map<int32_t, LinkHost::Rank>& linked) const {
  std::vector<std::string> troubles;
  if (std::string desk = home_.desk->TroubleOf(job_, attempt_); !desk.empty()) {
    troubles.push_back(std::move(desk));
  }
  for (const auto& [number, rank] : linked) {
    if (!rank.news.trouble.empty()) troubles.push_back(rank.news.trouble);
  }
  return Printable(absl::StrJoin(troubles, "; "), kMaxDetailBytes);
}

void Gang::Kill(int32_t number, const std::string& reason) {
  if (prepares()) {
    ended_before_start_ = RankState::kFailed;
    if (preparation_ != nullptr) preparation_->Cancel();
    Fail(absl::StrCat("killed before it started: ", reason), v1::FAILURE_CAUSE_MACHINE);
  }
  for (Rank& rank : ranks_) {
    if (rank.rank != number || rank.process.empty()) continue;
    const std::string trouble = link_ == nullptr ? "" : Trouble(link_->Ranks());
    // One that does not end where others have lost it is what they lost.
    Fail(absl::StrCat("killed: ", reason, trouble.empty() ? "" : "; ", trouble),
         trouble.empty() ? CauseOfHang(cause_ == v1::FAILURE_CAUSE_PEER) : v1::FAILURE_CAUSE_DISK);
    rank.killed = true;
    (void)home_.supervisor->Kill(rank.process);
  }
}

v1::GangReport Gang::Report() {
  const RankState state = StateOfGang(Look());
  v1::GangReport report;
  report.set_job(job_);
  report.set_attempt(attempt_);
  report.set_phase(PhaseOf(failed_to_start_ ? RankState::kFailed : state));
  report.set_next_step(first_step_);
  if (report.phase() == v1::RANK_PHASE_FAILED) {
    report.set_detail(detail_);
    report.set_cause(cause_);
  }
  if (not_started_) report.set_cause(v1::FAILURE_CAUSE_PEER);
  if (report.phase() == v1::RANK_PHASE_ASSIGNED && preparation_ != nullptr) {
    report.set_detail(Printable(preparation_->progress(), kMaxDetailBytes));
  }
  std::map<int32_t, LinkHost::Rank> linked;
  if (link_ != nullptr) linked = link_->TakeRanks();
  if (started_ && !HasEnded(state)) report.set_trouble(Trouble(linked));
  const int64_t now = home_.clock();
  for (const auto& [number, rank] : linked) {
    const RankNews& news = rank.news;
    v1::RankHealth& health = *report.add_ranks();
    health.set_rank(number);
    health.set_next_step(news.next_step);
    // One that waits between two steps, or after the last, is not held to its steps' pace.
    const bool steps = news.doing == RankNews::Doing::kSteps;
    health.set_since_step_ms(steps ? std::max<int64_t>(0, now - rank.step_at_ms) : 0);
    health.set_median_step_ms(rank.median_step_ms);
    health.set_waiting_in(Printable(news.waiting_in, kMaxJobIdBytes));
    health.set_memory_bytes(news.memory_bytes);
    if (number != 0) continue;
    report.set_next_step(std::max(first_step_, news.next_step));
    report.set_checkpoint_request(news.checkpoint_request);
    for (const RankNews& sample : rank.samples) *report.add_samples() = SampleOf(sample);
  }
  for (const auto& [revision, step] : revisions_) {
    v1::RevisionStart& start = *report.add_revisions();
    start.set_revision(revision);
    start.set_first_step(step);
  }
  for (const auto& [revision, reason] : refused_) {
    v1::RefusedRevision& refused = *report.add_refused();
    refused.set_revision(revision);
    refused.set_reason(reason);
  }
  return report;
}

}  // namespace nibble

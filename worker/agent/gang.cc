#include "worker/agent/gang.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/staged_file.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "recipe/recipe_json.h"
#include "recipe/timeline.h"
#include "worker/agent/gang_rules.h"
#include "worker/trainer/link/daemon_link.h"
#include "worker/trainer/link/link_message.h"

namespace nibble {
namespace {

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
  // Without a debugger, the kernel's view: the system call in which each thread waits.
  return {"/bin/sh", "-c",
          absl::StrCat("echo 'neither eu-stack nor gdb is installed; threads and what they wait "
                       "in:'; for t in /proc/",
                       number,
                       "/task/*; do echo \"${t##*/} $(cat $t/comm) $(cat $t/wchan) $(cat "
                       "$t/syscall)\"; done")};
}

// --- The recipe of a job over time, as JSON for its ranks

std::vector<FieldSetting> SettingsOf(
    const google::protobuf::RepeatedPtrField<v1::FieldSetting>& messages) {
  std::vector<FieldSetting> settings;
  for (const v1::FieldSetting& message : messages) {
    settings.push_back({message.field(), message.value()});
  }
  return settings;
}

Recipe RecipeOf(const v1::Recipe& message) {
  Recipe recipe = {.preset = message.preset(), .set = SettingsOf(message.set())};
  for (const v1::LayerRule& rule : message.layers()) {
    recipe.layers.push_back({rule.match(), SettingsOf(rule.set())});
  }
  return recipe;
}

// Errors as Timeline::FromRevisions.
absl::StatusOr<std::string> TimelineJson(
    const google::protobuf::RepeatedPtrField<v1::RecipeRevision>& revisions) {
  std::vector<Revision> values;
  for (const v1::RecipeRevision& message : revisions) {
    values.push_back({.number = message.number(),
                      .first_step = message.first_step(),
                      .author = message.author(),
                      .time_unix_ms = message.time_unix_ms(),
                      .reason = message.reason(),
                      .recipe = RecipeOf(message.recipe()),
                      .refused = message.refused()});
  }
  NIBBLE_ASSIGN_OR_RETURN(const Timeline timeline, Timeline::FromRevisions(std::move(values)));
  return ToJson(timeline);
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
  home_.registry->CloseAttempt(job_, attempt_);
  for (const Rank& rank : ranks_) {
    if (rank.process.empty()) continue;
    // The supervisor ends processes that still run; see the class.
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
  NIBBLE_RETURN_IF_ERROR(CheckJobId(job_));
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
  // The trainer uses the name in its spec as the job of its store.
  if (status.ok()) {
    status = home_.registry->OpenJob(job_, job_directory, {.cluster = "", .job = spec->name});
  }
  if (!status.ok()) return status;
  NIBBLE_ASSIGN_OR_RETURN(
      checkpoint_host_,
      home_.registry->OpenAttempt(job_, attempt_, desired.first_rank(), desired.slots_size()));
  // A number, because a job's name may be longer than a socket's path.
  static int64_t links = 0;
  NIBBLE_ASSIGN_OR_RETURN(
      link_, LinkHost::Start({.address = absl::StrCat(home_.run_directory, "/", ++links, ".link"),
                              .attempt = attempt_,
                              .first_rank = desired.first_rank(),
                              .ranks = desired.slots_size(),
                              .clock = home_.clock,
                              .changed = home_.changed}));
  Tell(desired);
  if (ended_before_start_.has_value()) return absl::OkStatus();
  const bool whole = desired.slots_size() == desired.world();
  const std::string rendezvous = whole ? absl::StrCat("file:", directory_, "/rendezvous") : "";
  if (whole && !desired.has_resume()) return StartRanks(rendezvous);
  preparation_ =
      std::make_unique<GangPreparation>(desired, rendezvous,
                                        GangPreparation::Means{.registry = home_.registry,
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
    NIBBLE_RETURN_IF_ERROR(StartRank(rank, rendezvous));
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
  // The daemon's variables override those of the spec.
  program.environment[kDaemonLinkVariable] = link_->address();
  if (home_.cuda) {
    program.environment["CUDA_VISIBLE_DEVICES"] = absl::StrCat(desired_.slots(local_rank));
  }
  absl::Status status = home_.supervisor->Start(program);
  if (status.ok()) rank.process = program.name;
  return status;
}

void Gang::ForgetConfirmed(const v1::DesiredGang& desired) {
  // Keep the newest, which is in effect.
  const auto forget = [this](int64_t number) {
    if (!revisions_.empty() && number < revisions_.rbegin()->first) revisions_.erase(number);
  };
  for (const v1::RecipeRevision& revision : desired.revisions()) {
    if (revision.confirmed()) forget(revision.number());
  }
  // Revisions before the first one named are no longer of interest.
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
      // The ranks continue under their present timeline.
      Refuse(word.timeline_revision, std::string(timeline.status().message()));
      word.timeline_revision = 0;
    }
  }
  ForgetConfirmed(desired);
  told_ = order;
  if (prepares() && order.wish == GangWish::kStop) {  // no progress is lost
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
    // A failure to dump must not delay the end of the gang.
    if (!started.ok()) rank.dumped = true;
  }
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
    // A rank that does not end after others lost it is the one that they lost.
    Fail(absl::StrCat("killed: ", reason, trouble.empty() ? "" : "; ", trouble),
         trouble.empty() ? CauseOfHang(cause_ == v1::FAILURE_CAUSE_PEER) : v1::FAILURE_CAUSE_DISK);
    rank.killed = true;
    (void)home_.supervisor->Kill(rank.process);
  }
}

}  // namespace nibble

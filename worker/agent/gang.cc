#include "worker/agent/gang.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "worker/agent/desired_state.h"
#include "worker/agent/gang_rules.h"
#include "worker/link/trainer_exit.h"

namespace nibble {
namespace {

constexpr char kDumpSeconds[] = "30";
// A process that stands by only has to read the order.
constexpr std::chrono::seconds kRejoinPatience(2);

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
          absl::StrCat("echo 'neither eu-stack nor gdb is installed; the threads and their "
                       "system calls:'; for t in /proc/",
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
                                                 " of [A-Za-z0-9._-], or begins with a dot"));
}

Gang::Gang(const v1::DesiredGang& desired, const v1::StoreIdentity& store, const GangHome& home)
    : home_(home),
      desired_(desired),
      job_(desired.job()),
      attempt_(desired.attempt()),
      store_(store),
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
  preparation_.reset();  // its thread may be about to open the meeting
  home_.meetings->Close(job_, attempt_);
  std::map<int32_t, LinkHost::Rank> linked;
  if (link_ != nullptr) linked = link_->Ranks();
  std::erase_if(linked, [](const auto& rank) {
    return !rank.second.connected || !rank.second.standing_by.has_value();
  });
  const std::shared_ptr<LinkHost> link = std::move(link_);
  // Before the end of the attempt's snapshots, which it uses.
  if (link != nullptr) link->Retire();
  home_.registry->CloseAttempt(job_, attempt_);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (rank.process.empty()) continue;
    if (linked.contains(rank.rank) && home_.standby != nullptr &&
        home_.supervisor->PidOf(rank.process).ok()) {
      Log(absl::StrCat(", rank ", rank.rank, " stands by for the job's next attempt"));
      home_.standby->Add(slots_[i],
                         {.job = job_, .process = rank.process, .number = rank.rank, .link = link});
      (void)home_.supervisor->Forget(rank.process + ".stacks");
      continue;
    }
    // The supervisor ends processes that still run; see the class.
    (void)home_.supervisor->Forget(rank.process);
    (void)home_.supervisor->Forget(rank.process + ".stacks");
  }
}

void Gang::Log(const std::string& line) const {
  if (home_.log) home_.log(absl::StrCat(job_, " attempt ", attempt_, line));
}

void Gang::Prepare() {
  absl::Status status = home_.provenance->RecordOrder(desired_, store_);
  if (!status.ok()) return Refuse(status);
  Log(" starts");
  status = Start();
  if (!status.ok()) FailToStart(status);
}

void Gang::Refuse(const absl::Status& why) {
  Log(absl::StrCat(" does not start: ", std::string(why.message())));
  refused_to_start_ = true;
  FailToStart(why);
}

void Gang::FailToStart(const absl::Status& why) {
  failed_to_start_ = true;
  Fail(absl::StrCat("cannot start: ", std::string(why.message())), CauseOf(why));
  for (Rank& rank : ranks_) {
    if (!rank.process.empty()) (void)home_.supervisor->Kill(rank.process);
  }
}

absl::Status Gang::Start() {
  NIBBLE_RETURN_IF_ERROR(CheckJobId(job_));
  if (desired_.slots().empty() || desired_.first_rank() < 0 ||
      int64_t{desired_.first_rank()} + desired_.slots_size() > desired_.world()) {
    return absl::InvalidArgumentError(absl::StrCat("slots: ", desired_.slots_size(), " from rank ",
                                                   desired_.first_rank(),
                                                   " on are not in a world of ", desired_.world()));
  }
  absl::StatusOr<JobSpec> spec = ParseJobSpec(desired_.spec_yaml());
  if (!spec.ok()) return WithExit(spec.status(), TrainerExit::kSpec);
  if (const absl::Status allowed = home_.roots.CheckSpec(*spec); !allowed.ok()) {
    return WithExit(allowed, TrainerExit::kSpec);
  }
  NoteModel(*spec);
  const std::string job_directory = absl::StrCat(home_.jobs_directory, "/", job_);
  directory_ = absl::StrCat(job_directory, "/attempt-", attempt_);
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(directory_));
  spec->output.directory = job_directory;
  if (spec->output.tensorboard.starts_with("/")) spec->output.tensorboard += "/" + job_;
  spec->resources.ranks = desired_.world();
  for (const NamedText& variable : spec->env) environment_[variable.name] = variable.text;
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(directory_ + "/spec.yaml", ToYaml(*spec), home_.faults));
  // The trainer uses the name in its spec as the job of its store.
  NIBBLE_RETURN_IF_ERROR(
      home_.registry->OpenJob(job_, job_directory, {.cluster = "", .job = spec->name}));
  NIBBLE_ASSIGN_OR_RETURN(SnapshotSink* const snapshots,
                          home_.registry->OpenAttempt(job_, attempt_, desired_.slots_size()));
  // A number, because a job's name may be longer than a socket's path.
  static std::atomic<int64_t> links = 0;
  NIBBLE_ASSIGN_OR_RETURN(
      link_, LinkHost::Start({.address = absl::StrCat(home_.run_directory, "/", ++links, ".link"),
                              .attempt = attempt_,
                              .first_rank = desired_.first_rank(),
                              .ranks = desired_.slots_size(),
                              .clock = home_.clock,
                              .changed = home_.changed,
                              .snapshots = snapshots}));
  Send(desired_);
  if (ended_before_start_.has_value()) return absl::OkStatus();
  preparation_ = std::make_unique<GangPreparation>(desired_, home_);
  return absl::OkStatus();
}

void Gang::Advance(const v1::DesiredGang* desired) {
  if (preparation_ == nullptr || !preparing()) return;
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
                    rendezvous, "--attempt", absl::StrCat(attempt_), "--link", link_->address()},
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
  if (home_.keep_ranks.count() > 0) {
    program.arguments.insert(program.arguments.end(),
                             {"--stand-by", absl::StrCat(home_.keep_ranks.count())});
  }
  const auto slot = static_cast<size_t>(desired_.slots(local_rank));
  if (slot < home_.pins.size()) {
    program.cpus = home_.pins[slot].threads;
    program.memory_node = home_.pins[slot].memory_node;
  }
  // The daemon's variables override those of the spec.
  if (!home_.nccl_interface.empty()) {
    // "=": this name, and none that begins with it.
    program.environment["NCCL_SOCKET_IFNAME"] = absl::StrCat("=", home_.nccl_interface);
  }
  if (!home_.cards.empty()) {
    if (slot >= home_.cards.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot ", slot, " of a worker with ",
                       Counted(static_cast<int64_t>(home_.cards.size()), "card")));
    }
    program.environment["CUDA_VISIBLE_DEVICES"] = home_.cards[slot];
    // Numbers of cards are NVML's, which follow the bus; CUDA would put the fastest card first.
    program.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  }
  if (home_.standby != nullptr) {
    const std::optional<StandbyRanks::Rank> kept =
        home_.standby->Take(desired_.slots(local_rank), job_);
    if (kept.has_value()) {
      const absl::Status rejoined = RejoinRank(rank, *kept, rendezvous);
      if (rejoined.ok()) return rejoined;
      Log(absl::StrCat(", rank ", rank.rank,
                       " starts in a new process; that of an earlier attempt does not rejoin: ",
                       std::string(rejoined.message())));
    }
  }
  absl::Status status = home_.supervisor->Start(program);
  if (status.ok()) rank.process = program.name;
  return status;
}

absl::Status Gang::RejoinRank(Rank& rank, const StandbyRanks::Rank& kept,
                              const std::string& rendezvous) {
  link::v1::Rejoin order;
  order.set_attempt(attempt_);
  order.set_spec(directory_ + "/spec.yaml");
  order.set_rank(rank.rank);
  order.set_world(desired_.world());
  order.set_local_rank(rank.rank - desired_.first_rank());
  order.set_rendezvous(rendezvous);
  order.set_link(link_->address());
  order.set_resume_step(-1);
  if (desired_.has_resume()) {
    order.set_resume_step(desired_.resume().step());
    order.set_resume_store(
        absl::StrCat(home_.jobs_directory, "/", desired_.resume().job(), "/checkpoints"));
    order.set_weights_only(desired_.weights_only());
  }
  const std::string name = ProcessName(job_, attempt_, rank.rank);
  std::string process = kept.process;
  absl::Status status = home_.supervisor->Rename(
      process, name, LogPath(home_.jobs_directory, job_, attempt_, rank.rank));
  if (status.ok()) {
    process = name;
    status = kept.link->Rejoin(kept.number, order, kRejoinPatience);
  }
  if (status.ok()) {
    rank.process = name;
    Log(absl::StrCat(", rank ", rank.rank, " continues in the process of an earlier attempt"));
    return status;
  }
  (void)home_.supervisor->Kill(process);
  (void)home_.supervisor->AwaitEnd(process);
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

void Gang::Send(const v1::DesiredGang& desired) {
  const GangOrder order = WantedOf(desired, {}).order;
  link::v1::Command command;
  command.set_command(desired.command());
  command.set_checkpoint_request(order.checkpoint_request);
  *command.mutable_revisions() = desired.revisions();
  ForgetConfirmed(desired);
  sent_ = order;
  if (preparing() && order.command == v1::GANG_COMMAND_STOP) {  // no progress is lost
    ended_before_start_ = RankState::kStopped;
    if (preparation_ != nullptr) preparation_->Cancel();
  }
  if (link_ == nullptr) return;
  link_->SetCommand(command);
  if (order.command != v1::GANG_COMMAND_STOP) return;
  const std::map<int32_t, LinkHost::Rank> linked = link_->Ranks();
  for (const Rank& rank : ranks_) {
    const auto at = linked.find(rank.rank);
    const bool connected = at != linked.end() && at->second.connected;
    if (!connected && !rank.process.empty()) (void)home_.supervisor->Signal(rank.process, SIGTERM);
  }
}

void Gang::Trace(const link::v1::TraceCommand& trace) {
  if (link_ != nullptr) link_->Trace(trace);
}

void Gang::DumpStacks(int32_t number, const std::string& reason) {
  for (Rank& rank : ranks_) {
    if (rank.rank != number || rank.dumping || rank.process.empty()) continue;
    if (detail_.empty()) {
      Fail(absl::StrCat("rank ", number, " ", reason), v1::FAILURE_CAUSE_MACHINE);
    }
    rank.dumping = true;
    Log(absl::StrCat(", rank ", number, ": ", reason, "; its stacks are written"));
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
    // A failed dump does not delay the end of the gang.
    if (!started.ok()) rank.dumped = true;
  }
}

bool Gang::StandsBy(int32_t number) const {
  if (link_ == nullptr) return false;
  const std::map<int32_t, LinkHost::Rank> linked = link_->Ranks();
  const auto at = linked.find(number);
  return at != linked.end() && at->second.connected && at->second.standing_by.has_value();
}

void Gang::Kill(int32_t number, const std::string& reason) {
  if (preparing()) {
    ended_before_start_ = RankState::kFailed;
    if (preparation_ != nullptr) preparation_->Cancel();
    Fail(absl::StrCat("killed before it started: ", reason), v1::FAILURE_CAUSE_MACHINE);
  }
  for (Rank& rank : ranks_) {
    if (rank.rank != number || rank.process.empty() || StandsBy(number)) continue;
    const std::string trouble = link_ == nullptr ? "" : Trouble(link_->Ranks());
    // A rank that does not end after its peers have lost a rank is the lost one.
    Fail(absl::StrCat("killed: ", reason, trouble.empty() ? "" : "; ", trouble),
         trouble.empty() ? CauseOfHang(cause_ == v1::FAILURE_CAUSE_PEER) : v1::FAILURE_CAUSE_DISK);
    if (!rank.killed) Log(absl::StrCat(", rank ", number, " is killed: ", reason));
    rank.killed = true;
    (void)home_.supervisor->Kill(rank.process);
  }
}

}  // namespace nibble

#include "worker/trainer/loop/trainer_program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/command_line/command_line.h"
#include "common/files/truncated_files.h"
#include "common/process/standard_descriptors.h"
#include "common/status_macros.h"
#include "common/version/build_version.h"
#include "job/job_spec.h"
#include "worker/link/rank_link.h"
#include "worker/link/trainer_exit.h"
#include "worker/link/waiting_page.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/launch_local.h"
#include "worker/trainer/comm/signal_block.h"
#include "worker/trainer/loop/local_checkpoints.h"
#include "worker/trainer/loop/run_job.h"
#include "worker/trainer/report/progress.h"

namespace {

using nibble::TrainerExit;

struct Arguments {
  std::string spec;
  int rank = -1;
  int world = 1;
  std::string rendezvous;
  int64_t attempt = 0;
  std::string link;
  int64_t resume_step = -1;
  std::string resume_store;
  bool weights_only = false;
  int local_rank = -1;
  bool fresh = false;
  std::optional<int64_t> from_step;
  std::vector<std::string> notices;
  std::string bind_address = "127.0.0.1";
  bool quiet = false;
  int64_t stand_by = 0;  // seconds
  nibble::RunTraceOptions trace;
};

// The exit code that goes with it.
TrainerExit Complain(const absl::Status& status) {
  std::fprintf(stderr, "%s%s\n", nibble::kTrainerComplaint, std::string(status.message()).c_str());
  return nibble::ExitOf(status);
}

int CodeOf(TrainerExit exit) { return static_cast<int>(exit); }

absl::StatusOr<nibble::JobSpec> ReadSpec(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  // One byte more than is allowed shows that there is too much.
  std::string text(nibble::kMaxJobBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return absl::FailedPreconditionError(absl::StrCat("cannot read ", path));
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StatusOr<nibble::JobSpec> spec = nibble::ParseJobSpec(text);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(),
                      absl::StrCat(path, ": ", std::string(spec.status().message())));
}

void Chat(const Arguments& arguments, const std::string& text) {
  if (!arguments.quiet) std::fprintf(stderr, "nibble-trainer: %s\n", text.c_str());
}

// The exit code of an error of the checkpoints to begin from, or of their store.
TrainerExit ComplainOfStore(const absl::Status& status) {
  if (absl::IsDataLoss(status)) {
    return Complain(nibble::WithExit(status, TrainerExit::kCheckpoint));
  }
  if (absl::IsResourceExhausted(status)) {
    return Complain(nibble::WithExit(status, TrainerExit::kDisk));
  }
  return Complain(status);
}

// Null where the spec wants none.
TrainerExit OpenCheckpoints(const Arguments& arguments, const nibble::JobSpec& spec,
                            std::unique_ptr<nibble::LocalCheckpoints>& checkpoints) {
  if (!spec.checkpoints.any()) return TrainerExit::kDone;
  absl::StatusOr<std::unique_ptr<nibble::LocalCheckpoints>> opened = nibble::LocalCheckpoints::Open(
      spec, {.fresh = arguments.fresh, .step = arguments.from_step},
      [](const std::string& trouble) {
        std::fprintf(stderr, "%s%s\n", nibble::kTrainerComplaint,
                     trouble.empty() ? "there is room for the checkpoint again" : trouble.c_str());
      });
  if (!opened.ok()) return ComplainOfStore(opened.status());
  checkpoints = *std::move(opened);
  return TrainerExit::kDone;
}

// Opens the checkpoints of a run without a cluster, and chooses what it begins with: the newest of
// them, else the weights that its spec names. `local` must live as long as the run and serves its
// ranks at `link`.
TrainerExit BeginLocally(const Arguments& arguments, const nibble::JobSpec& spec,
                         std::unique_ptr<nibble::LocalCheckpoints>& local, std::string& link,
                         nibble::RunCheckpoints& checkpoints) {
  // The threads of stores take no signals: these are for the launcher, or the run.
  const nibble::BlockAllSignals blocked;
  const TrainerExit opened = OpenCheckpoints(arguments, spec, local);
  if (opened != TrainerExit::kDone) return opened;
  if (local != nullptr) {
    link = local->address();
    checkpoints.attempt = local->attempt();
    checkpoints.resume_step = local->resume_step().value_or(-1);
    checkpoints.notices = local->notices();
  }
  if (checkpoints.resume_step >= 0 || spec.init_from.path.empty()) return TrainerExit::kDone;
  const absl::StatusOr<nibble::InitialWeights> weights = nibble::FindInitialWeights(spec.init_from);
  if (!weights.ok()) {
    const bool not_there =
        absl::IsNotFound(weights.status()) || absl::IsFailedPrecondition(weights.status());
    return ComplainOfStore(not_there ? nibble::WithExit(weights.status(), TrainerExit::kSpec)
                                     : weights.status());
  }
  checkpoints.store = weights->store;
  checkpoints.resume_step = weights->step;
  checkpoints.weights_only = true;
  checkpoints.notices.insert(checkpoints.notices.end(), weights->notices.begin(),
                             weights->notices.end());
  return TrainerExit::kDone;
}

// The exit code of a group: that of the rank that failed, not of those that lost it or had to be
// killed after it.
TrainerExit ExitOfGroup(const nibble::LaunchResult& result) {
  TrainerExit exit = TrainerExit::kStopped;
  for (const nibble::RankExit& rank : result.ranks) {
    if (rank.ok() || (rank.signal == 0 && rank.exit_code == CodeOf(TrainerExit::kStopped))) {
      continue;
    }
    const auto code = rank.signal != 0 ? std::nullopt : nibble::TrainerExitFrom(rank.exit_code);
    const TrainerExit own = code.value_or(TrainerExit::kError);
    const bool follows = own == TrainerExit::kPeer || (rank.signal != 0 && rank.stopped);
    if (!follows) return own;
    exit = own;
  }
  return exit;
}

// Starts this program once per rank.
TrainerExit LaunchRanks(const Arguments& arguments, const nibble::JobSpec& spec) {
  std::unique_ptr<nibble::LocalCheckpoints> local;
  nibble::RunCheckpoints checkpoints = {.store = nibble::CheckpointDirectory(spec)};
  std::string link;
  const TrainerExit begun = BeginLocally(arguments, spec, local, link, checkpoints);
  if (begun != TrainerExit::kDone) return begun;
  std::vector<std::string> passed = {"--spec", arguments.spec};
  for (const std::string& notice : checkpoints.notices) {
    passed.insert(passed.end(), {"--notice", notice});
  }
  if (!link.empty()) {
    passed.insert(passed.end(), {"--link", link, "--attempt", absl::StrCat(checkpoints.attempt)});
  }
  if (checkpoints.resume_step >= 0) {
    passed.insert(passed.end(), {"--resume-step", absl::StrCat(checkpoints.resume_step),
                                 "--resume-store", checkpoints.store});
  }
  if (checkpoints.weights_only) passed.push_back("--weights-only");
  if (arguments.quiet) passed.push_back("--quiet");
  if (!arguments.trace.path.empty()) {
    passed.insert(passed.end(), {"--trace", arguments.trace.path, "--trace-steps",
                                 absl::StrCat(arguments.trace.steps), "--trace-after",
                                 absl::StrCat(arguments.trace.after)});
  }
  const absl::StatusOr<nibble::LaunchResult> result = nibble::LaunchLocal(
      {.ranks = static_cast<int>(spec.resources.ranks), .arguments = std::move(passed)});
  if (!result.ok()) return Complain(result.status());
  if (result->ok()) return TrainerExit::kDone;
  const TrainerExit exit = ExitOfGroup(*result);
  if (exit != TrainerExit::kStopped) {
    std::fprintf(stderr, "%s%s\n", nibble::kTrainerComplaint, result->Describe().c_str());
  }
  return exit;
}

// What is left of a rank's run.
struct RankAfter {
  std::unique_ptr<nibble::RankLink> link;  // null: the run had none
  std::string complaint;                   // the error that ended it
};

TrainerExit RunRank(const Arguments& arguments, const nibble::JobSpec& spec,
                    const nibble::DeviceFactory& factory, RankAfter& after) {
  nibble::RunCheckpoints checkpoints = {.attempt = arguments.attempt,
                                        .store = arguments.resume_store.empty()
                                                     ? nibble::CheckpointDirectory(spec)
                                                     : arguments.resume_store,
                                        .resume_step = arguments.resume_step,
                                        .weights_only = arguments.weights_only,
                                        .notices = arguments.notices};
  std::string link = arguments.link;
  // A run of one rank stores its own checkpoints; otherwise the process that started the ranks
  // does.
  std::unique_ptr<nibble::LocalCheckpoints> local;
  if (arguments.rank < 0) {
    const TrainerExit begun = BeginLocally(arguments, spec, local, link, checkpoints);
    if (begun != TrainerExit::kDone) return begun;
  }
  // Its daemon asks on it whether ranks that wait for another one can give up.
  std::atomic<nibble::WaitingPage*> page = nullptr;
  // Groups of one launch have names of their own; the first is named after the attempt.
  const auto join = [&arguments, &page](const std::string& name) {
    return nibble::CreateGloo({.rank = arguments.rank,
                               .world = arguments.world,
                               .rendezvous = arguments.rendezvous,
                               .attempt = absl::StrCat(arguments.attempt, name),
                               .bind_address = arguments.bind_address,
                               .gives_up = [&page] {
                                 nibble::WaitingPage* const asked = page.load();
                                 return asked != nullptr && asked->MustGiveUp();
                               }});
  };
  std::unique_ptr<nibble::Collective> collective;
  if (spec.resources.ranks == 1) {
    collective = nibble::CreateLocal();
  } else {
    absl::StatusOr<std::unique_ptr<nibble::Collective>> gloo = join("");
    if (!gloo.ok()) {
      // Ranks that do not meet wait for one that is not there.
      const bool waited =
          absl::IsUnavailable(gloo.status()) || absl::IsDeadlineExceeded(gloo.status());
      return Complain(waited ? nibble::WithExit(gloo.status(), TrainerExit::kPeer) : gloo.status());
    }
    collective = *std::move(gloo);
  }
  std::atomic<bool> stop_requested = false;
  const nibble::StopSignals stop_signals(stop_requested);
  const absl::StatusOr<nibble::RunSummary> summary = nibble::RunJob(
      spec, std::move(collective),
      {.stop = &stop_requested,
       .device = factory,
       .local_rank = std::max(0, arguments.local_rank < 0 ? arguments.rank : arguments.local_rank),
       .join = [&join](const std::string& name) { return join("/" + name); },
       .progress = arguments.quiet ? nullptr : &std::cerr,
       .terminal = nibble::IsTerminal(2),
       .checkpoints = std::move(checkpoints),
       .link = std::move(link),
       .link_after = &after.link,
       .page = &page,
       .trace = arguments.trace,
       .prepares_data =
           arguments.local_rank < 0 ? arguments.rank <= 0 : arguments.local_rank == 0});
  if (!summary.ok()) {
    after.complaint = std::string(summary.status().message());
    return Complain(summary.status());
  }
  const bool reports = arguments.rank <= 0;
  if (reports && summary->failed_checkpoints > 0) {
    Chat(arguments,
         absl::StrCat(summary->failed_checkpoints, " checkpoints could not be stored; ",
                      summary->last_checkpoint < 0
                          ? "there is none"
                          : absl::StrCat("the newest is that of step ", summary->last_checkpoint)));
  }
  if (!summary->checkpoint_status.ok()) {
    if (reports) (void)Complain(summary->checkpoint_status);
    return nibble::ExitOf(summary->checkpoint_status);
  }
  return summary->reason == "completed" || summary->reason == "early_stop" ? TrainerExit::kDone
                                                                           : TrainerExit::kStopped;
}

// Waits for the order to join a later attempt, whose arguments then replace the present ones.
absl::Status StandBy(Arguments& arguments, nibble::JobSpec& spec, RankAfter after) {
  nibble::TakeStopSignals();
  NIBBLE_ASSIGN_OR_RETURN(
      const nibble::link::v1::Rejoin order,
      after.link->StandBy(after.complaint, std::chrono::seconds(arguments.stand_by)));
  arguments.spec = order.spec();
  arguments.rank = order.rank();
  arguments.world = order.world();
  arguments.local_rank = order.local_rank();
  arguments.rendezvous = order.rendezvous();
  arguments.attempt = order.attempt();
  arguments.link = order.link();
  arguments.resume_step = order.resume_step();
  arguments.resume_store = order.resume_store();
  arguments.weights_only = order.weights_only();
  NIBBLE_ASSIGN_OR_RETURN(spec, ReadSpec(arguments.spec));
  return absl::OkStatus();
}

// Runs a rank of a group, and then of the attempts that it is ordered to join after it has lost
// another rank.
TrainerExit RunRankOfAttempts(Arguments arguments, nibble::JobSpec spec,
                              const nibble::DeviceFactory& factory) {
  while (true) {
    RankAfter after;
    const TrainerExit exit = RunRank(arguments, spec, factory, after);
    if (exit != TrainerExit::kPeer || arguments.stand_by == 0 || after.link == nullptr) return exit;
    const absl::Status ordered = StandBy(arguments, spec, std::move(after));
    if (ordered.ok()) continue;
    // The last complaint is the reason of the end, which remains the lost rank.
    std::fprintf(stderr, "stands by no longer: %s\n", std::string(ordered.message()).c_str());
    return exit;
  }
}

}  // namespace

int nibble::RunTrainerProgram(int argc, char** argv, const DeviceFactory& factory) {
  ReserveStandardDescriptors();
  ReportTruncatedFiles(kTrainerComplaint, CodeOf(TrainerExit::kSpec));
  Arguments arguments;
  nibble::CommandLine app("Trains one job on this machine", "nibble-trainer");
  app.SetVersion("nibble-trainer " + BuildVersion());
  app.Add("--spec", arguments.spec, "The job, as YAML (nibble job show-defaults)").Required();
  app.Add("--rank", arguments.rank, "This process's rank in a group started by others");
  app.Add("--world", arguments.world, "Ranks of that group");
  app.Add("--rendezvous", arguments.rendezvous, "tcp:HOST:PORT or served:HOST:PORT");
  app.Add("--attempt", arguments.attempt, "Number of this launch of the group");
  app.Add("--bind", arguments.bind_address, "Address that this rank listens at").ShowDefault();
  app.Add("--link", arguments.link,
          "Socket of the process that serves this rank, in a group started by others");
  app.Add("--resume-step", arguments.resume_step,
          "The step of the checkpoint that such a group begins from");
  app.Add("--resume-store", arguments.resume_store,
          "The store of that checkpoint (default: the run's own)");
  app.AddFlag("--weights-only", arguments.weights_only,
              "Load only its weights, and begin at the first step");
  app.Add("--local-rank", arguments.local_rank,
          "This process's number on its node, in a group started by others");
  app.Add("--stand-by", arguments.stand_by,
          "Seconds that such a process waits, after another rank was lost, to join a later launch")
      .InRange(0, 3600);
  app.Add("--notice", arguments.notices, "A notice for the event log of such a group");
  const nibble::Option fresh = app.AddFlag(
      "--fresh", arguments.fresh, "Begin at the first step, even if there are checkpoints");
  app.Add("--from-step", arguments.from_step,
          "Resume from the checkpoint of this step, not from the newest")
      .Excludes(fresh);
  app.Add("--trace", arguments.trace.path,
          "Write a trace of some steps to this file, for Perfetto (ui.perfetto.dev)");
  app.Add("--trace-steps", arguments.trace.steps, "Number of traced steps")
      .AtLeast(1)
      .ShowDefault();
  app.Add("--trace-after", arguments.trace.after, "Steps of this run before the first traced one")
      .AtLeast(0)
      .ShowDefault();
  app.AddFlag("--quiet", arguments.quiet, "No progress output; the event log has everything");
  if (const std::optional<int> ended = app.Parse(argc, argv, CodeOf(TrainerExit::kUsage)))
    return *ended;
  absl::StatusOr<nibble::JobSpec> spec = ReadSpec(arguments.spec);
  if (!spec.ok()) {
    (void)Complain(spec.status());
    return CodeOf(TrainerExit::kUsage);
  }
  // An old trace is replaced; ranks that others started add to the file of their group.
  if (!arguments.trace.path.empty() && arguments.rank < 0) {
    std::error_code error;
    std::filesystem::remove(arguments.trace.path, error);
  }
  if (spec->resources.ranks > 1 && arguments.rank < 0) {
    return CodeOf(LaunchRanks(arguments, *spec));
  }
  if (arguments.rank >= 0 && arguments.world != spec->resources.ranks) {
    (void)Complain(absl::InvalidArgumentError(absl::StrCat(
        "--world ", arguments.world, ", but resources.ranks is ", spec->resources.ranks)));
    return CodeOf(TrainerExit::kUsage);
  }
  if (arguments.rank >= 0 && arguments.rank >= arguments.world) {
    (void)Complain(absl::InvalidArgumentError(
        absl::StrCat("--rank ", arguments.rank, " is not below --world ", arguments.world)));
    return CodeOf(TrainerExit::kUsage);
  }
  return CodeOf(RunRankOfAttempts(std::move(arguments), *std::move(spec), factory));
}

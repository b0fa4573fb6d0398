#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "client/remote/job_text.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {

struct CheckpointFlags {
  RemoteFlags remote;
  int64_t attempt = 0;
  bool uncommitted = false;
  bool no_wait = false;
  std::string reason;
};

namespace {

// "train-7@300"
std::string NameOf(const v1::CheckpointRef& ref) {
  return absl::StrCat(ref.job(), "@", ref.step());
}

// A line each, oldest first; the response lists them newest first.
std::string CheckpointTable(const google::protobuf::RepeatedPtrField<v1::Checkpoint>& checkpoints) {
  TextTable table({"STEP", "ATTEMPT", "STATE", "SIZE", "RANKS", "COMMITTED (UTC)", "PINNED BY"});
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    table.Add({absl::StrCat(checkpoint->ref().step()), absl::StrCat(checkpoint->ref().attempt()),
               checkpoint->left() ? "left" : Word(checkpoint->state()),
               BytesText(checkpoint->bytes()), absl::StrCat(checkpoint->world()),
               TimeText(checkpoint->committed_unix_ms()), absl::StrJoin(checkpoint->pins(), ", ")});
  }
  return table.Text();
}

// "verification 3 of train-7@300 is done on w1: …"
std::string TaskText(const v1::CheckpointRef& ref, const v1::CheckpointTask& task) {
  std::string text =
      absl::StrCat(task.kind() == v1::CHECKPOINT_TASK_KIND_EXPORT ? "export " : "verification ",
                   task.number(), " of ", NameOf(ref), " is ", Word(task.state()));
  if (!task.worker().empty()) absl::StrAppend(&text, " on ", task.worker());
  if (!task.destination().empty()) absl::StrAppend(&text, " to ", task.destination());
  if (!task.detail().empty()) absl::StrAppend(&text, ": ", task.detail());
  return text;
}

std::string CheckpointText(const v1::DescribeCheckpointResponse& described) {
  const v1::Checkpoint& checkpoint = described.checkpoint();
  TextList list;
  list.Add("checkpoint",
           absl::StrCat(NameOf(checkpoint.ref()), " of attempt ", checkpoint.ref().attempt()));
  list.Add("state", checkpoint.left() ? "left: a later attempt began before it and took its own way"
                    : checkpoint.damage().empty()
                        ? Word(checkpoint.state())
                        : absl::StrCat(Word(checkpoint.state()), ": ", checkpoint.damage()));
  list.Add("shards", absl::StrCat(checkpoint.durable_shards(), " of ", checkpoint.world(),
                                  " durable, ", BytesText(checkpoint.bytes())));
  if (checkpoint.committed_unix_ms() != 0) {
    list.Add("committed", absl::StrCat(TimeText(checkpoint.committed_unix_ms()), " UTC"));
  }
  if (!checkpoint.pins().empty()) list.Add("pinned by", absl::StrJoin(checkpoint.pins(), ", "));
  for (const v1::CheckpointShard& shard : described.shards()) {
    list.Add("shard", absl::StrCat("rank ", shard.rank(), ", ", BytesText(shard.bytes()), ", on ",
                                   shard.holders().empty() ? "no worker"
                                                           : absl::StrJoin(shard.holders(), ", ")));
  }
  for (const v1::CheckpointTask& task : checkpoint.tasks()) {
    list.Add("task", TaskText(checkpoint.ref(), task));
  }
  return list.Text();
}

// "train-7@300"; without a step, the newest (-1).
struct Name {
  std::string job;
  int64_t step = -1;
};

absl::StatusOr<Name> ParseName(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return Name{text};
  Name name = {text.substr(0, at)};
  if (name.job.empty() || !absl::SimpleAtoi(text.substr(at + 1), &name.step) || name.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: '", text, "' is not JOB@STEP with a step of 0 or more"));
  }
  return name;
}

absl::StatusOr<v1::CheckpointRef> FindRef(Session& session, const std::string& text,
                                          const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Name name, ParseName(text));
  const absl::StatusOr<v1::Job> job = FindJob(session, name.job);
  if (!job.ok()) return job.status();
  v1::CheckpointRef ref;
  ref.set_job(job->id());
  ref.set_step(name.step);
  ref.set_attempt(flags.attempt);
  return ref;
}

absl::StatusOr<int> List(Session& session, const std::string& text, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, text));
  v1::ListCheckpointsRequest request;
  request.set_job(job.id());
  request.set_with_uncommitted(flags.uncommitted);
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse all,
                          session.CallAllPages(kListCheckpoints, request));
  return session.Finish(all, CheckpointTable(all.checkpoints()));
}

absl::StatusOr<v1::DescribeCheckpointResponse> Described(Session& session,
                                                         const v1::CheckpointRef& ref) {
  v1::DescribeCheckpointRequest request;
  *request.mutable_ref() = ref;
  return session.Call(kDescribeCheckpoint, request);
}

absl::StatusOr<int> Describe(Session& session, const std::string& text,
                             const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef ref, FindRef(session, text, flags));
  NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeCheckpointResponse described, Described(session, ref));
  return session.Finish(described, CheckpointText(described));
}

// Returns the task when it has ended, or as it is when the wait ends.
absl::StatusOr<v1::CheckpointTask> WaitForTask(Session& session, const v1::CheckpointRef& ref,
                                               int64_t number, bool no_wait) {
  Interrupt interrupt;
  const absl::Duration deadline = session.flags().timeout.empty()
                                      ? absl::InfiniteDuration()
                                      : SteadyNow() + session.client().options().timeout;
  RetryPauses pauses;
  bool told = false;
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeCheckpointResponse described,
                            Described(session, ref));
    for (const v1::CheckpointTask& task : described.checkpoint().tasks()) {
      if (task.number() != number) continue;
      const bool ended = task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED;
      if (ended || no_wait || interrupt.happened() || SteadyNow() >= deadline) return task;
      if (!std::exchange(told, true)) {
        session.Say(
            absl::StrCat(TaskText(ref, task), "; waiting for its end, Ctrl-C lets go of it"));
      }
    }
    interrupt.SleepFor(std::min(pauses.Next(), deadline - SteadyNow()));
  }
}

absl::StatusOr<int> FinishTask(Session& session, const v1::CheckpointRef& ref, int64_t number,
                               const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointTask task,
                          WaitForTask(session, ref, number, flags.no_wait));
  NIBBLE_RETURN_IF_ERROR(session.Print(task, TaskText(ref, task) + "\n"));
  switch (task.state()) {
    case v1::CHECKPOINT_TASK_STATE_DONE:
      return kExitDone;
    case v1::CHECKPOINT_TASK_STATE_FAILED:
      return kExitError;
    default:
      session.Say(absl::StrCat("`nibble checkpoint describe ", NameOf(ref), "` tells its end"));
      return flags.no_wait ? kExitDone : kExitNotFinished;
  }
}

absl::StatusOr<int> Verify(Session& session, const std::string& text,
                           const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef ref, FindRef(session, text, flags));
  v1::VerifyCheckpointRequest request;
  *request.mutable_ref() = ref;
  NIBBLE_ASSIGN_OR_RETURN(const v1::VerifyCheckpointResponse response,
                          session.Call(kVerifyCheckpoint, request));
  return FinishTask(session, response.ref(), response.task(), flags);
}

// Resolves a relative target against the working directory, as for local checkpoints. The worker
// that writes it may be on another machine.
absl::StatusOr<std::string> AbsoluteTarget(Session& session, const std::string& target) {
  std::filesystem::path path(target);
  if (target.empty() || path.is_absolute()) return target;
  std::error_code error;
  path = std::filesystem::current_path(error) / path;
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "destination: '", target, "' is relative to a directory that is gone: ", error.message()));
  }
  const std::string absolute = path.lexically_normal().string();
  session.Say(absl::StrCat("'", target, "' is ", absolute, ", on the worker that writes it"));
  return absolute;
}

absl::StatusOr<int> Export(Session& session, const std::string& text, const std::string& target,
                           const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string destination, AbsoluteTarget(session, target));
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef ref, FindRef(session, text, flags));
  v1::ExportCheckpointRequest request;
  *request.mutable_ref() = ref;
  request.set_destination(destination);
  NIBBLE_ASSIGN_OR_RETURN(const v1::ExportCheckpointResponse response,
                          session.Call(kExportCheckpoint, request));
  return FinishTask(session, response.ref(), response.task(), flags);
}

template <class Request, class Response>
absl::StatusOr<Response> ChangeOf(Session& session, const std::string& text,
                                  const CheckpointFlags& flags, const Rpc<Request, Response>& rpc,
                                  Request request = {}) {
  if (text.find('@') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint: say which: ", text, "@STEP"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef ref, FindRef(session, text, flags));
  *request.mutable_ref() = ref;
  return session.Call(rpc, request);
}

absl::StatusOr<int> Pin(Session& session, const std::string& text, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const auto response, ChangeOf(session, text, flags, kPinCheckpoint));
  return session.Finish(response.checkpoint(),
                        absl::StrCat(NameOf(response.checkpoint().ref()), " is pinned\n"));
}

absl::StatusOr<int> Unpin(Session& session, const std::string& text, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const auto response, ChangeOf(session, text, flags, kUnpinCheckpoint));
  const v1::Checkpoint& checkpoint = response.checkpoint();
  return session.Finish(
      checkpoint, absl::StrCat(NameOf(checkpoint.ref()), checkpoint.pins().empty()
                                                             ? " is no longer pinned\n"
                                                             : " is pinned by others still\n"));
}

absl::StatusOr<int> Delete(Session& session, const std::string& text,
                           const CheckpointFlags& flags) {
  v1::DeleteCheckpointRequest request;
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(const auto response,
                          ChangeOf(session, text, flags, kDeleteCheckpoint, request));
  return session.Finish(response, absl::StrCat(NameOf(response.ref()), " is deleted\n"));
}

// Whether the name is a local directory: it has a slash, or a directory of that name exists.
bool IsHere(const std::string& name) {
  std::error_code ignored;
  const size_t at = name.rfind('@');
  return name.find('/') != std::string::npos || name.empty() ||
         std::filesystem::is_directory(name, ignored) ||
         (at != std::string::npos && std::filesystem::is_directory(name.substr(0, at), ignored));
}

// Returns kExitUsage if one of the options is given, which do not apply to this kind of name.
std::optional<int> Refuse(const GivenVerb& given, std::initializer_list<const char*> options,
                          const char* only) {
  for (const char* name : options) {
    const std::optional<Option> option = given.verb.FindOption(name);
    if (!option || !option->Given()) continue;
    Tell("checkpoint " + given.verb.Name(),
         absl::StrCat(name, " goes with ", only, "; '", given.name, "' is none"));
    return kExitUsage;
  }
  return std::nullopt;
}

std::optional<int> Run(const GivenVerb& given, CheckpointFlags flags) {
  if (flags.remote.server.empty() && IsHere(given.name)) {
    return Refuse(given, {"--attempt", "--uncommitted", "--no-wait", "--reason"},
                  "a job of the cluster");
  }
  const std::optional<int> refused =
      Refuse(given, {"--dtype", "--quantised", "--recipe", "--overwrite"}, "a run's directory");
  if (refused) return refused;
  flags.remote.print = given.print;
  const std::string verb = given.verb.Name();
  return RunRemote(
      "checkpoint " + verb, flags.remote, [&](Session& session) -> absl::StatusOr<int> {
        if (verb == "list") return List(session, given.name, flags);
        if (verb == "describe") return Describe(session, given.name, flags);
        if (verb == "verify") return Verify(session, given.name, flags);
        if (verb == "pin") return Pin(session, given.name, flags);
        if (verb == "unpin") return Unpin(session, given.name, flags);
        if (verb == "delete") return Delete(session, given.name, flags);
        return Export(session, given.name, given.verb.GetOption("TARGET").Word(), flags);
      });
}

}  // namespace

CheckpointVerbs::CheckpointVerbs() : flags_(std::make_shared<CheckpointFlags>()) {}

TakeOver CheckpointVerbs::take_over() const {
  return [flags = flags_](const GivenVerb& given) { return Run(given, *flags); };
}

void CheckpointVerbs::AddOptions(Command app) const {
  const Command checkpoint = NounOf(app, "checkpoint", "");
  for (const char* name : {"list", "describe", "verify", "export", "pin", "unpin", "delete"}) {
    const Command verb = checkpoint.Subcommand(name);
    AddRemoteOptions(verb, flags_->remote, Output::kNone);
    if (std::string(name) != "list") {
      verb.Add("--attempt", flags_->attempt, "of a job: the attempt that made it").AtLeast(0);
    }
  }
  const auto describe = [checkpoint](const char* verb, const char* option, const char* text) {
    checkpoint.Subcommand(verb).GetOption(option).Describe(text);
  };
  describe("list", "DIRECTORY", "a run's directory or store, or a job of the cluster");
  for (const char* verb : {"describe", "verify", "export"}) {
    describe(verb, "CHECKPOINT", "DIRECTORY@STEP or JOB@STEP; without a step the newest");
  }
  describe("verify", "CHECKPOINT",
           "DIRECTORY@STEP or JOB@STEP; without a step all of a directory, a job's newest");
  for (const char* verb : {"pin", "unpin", "delete"}) {
    describe(verb, "CHECKPOINT", "DIRECTORY@STEP or JOB@STEP");
  }
  describe("export", "TARGET",
           "directory to make; of a job it is made by a worker, on that worker's machine");
  const Command out = checkpoint.Subcommand("export");
  out.Footer(
      "Examples: nibble checkpoint export runs/quickstart@300 exported\n"
      "          nibble checkpoint export train-1@100 exported");
  for (const char* name : {"--dtype", "--quantised", "--recipe", "--overwrite"}) {
    const Option option = out.GetOption(name);
    option.Describe("of a directory: " + option.Description());
  }
  checkpoint.Subcommand("list").AddFlag("--uncommitted", flags_->uncommitted,
                                        "of a job: also those still being written");
  for (const char* verb : {"verify", "export"}) {
    checkpoint.Subcommand(verb).AddFlag("--no-wait", flags_->no_wait,
                                        "of a job: ask for it and go");
    TimeoutEndsWait(checkpoint.Subcommand(verb));
  }
  checkpoint.Subcommand("delete").Add("--reason", flags_->reason, "of a job: why, for its events");
}

namespace {

struct OrphanFlags {
  RemoteFlags remote;
  std::string job, worker, reason;
  bool dry_run = false;
};

std::string StepText(int64_t step) { return step < 0 ? "-" : absl::StrCat(step); }

std::string StateText(const v1::OrphanHolding& holding) {
  std::string text = holding.running() ? "ranks run" : "stored";
  if (!holding.spec_known()) text += ", no spec";
  if (holding.removal_ordered()) text += ", to be removed";
  return text;
}

absl::StatusOr<int> Orphans(Session& session, const OrphanFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListOrphansResponse all, session.CallAllPages(kListOrphans));
  TextTable table({"JOB", "WORKER", "STATE", "ATTEMPT", "SHARDS", "SIZE", "NEWEST STEP",
                   "WHOLE STEP", "FOR", "STORE"});
  for (const v1::OrphanJob& job : all.orphans()) {
    for (const v1::OrphanHolding& holding : job.holdings()) {
      table.Add({job.job(), holding.worker(), StateText(holding), absl::StrCat(holding.attempt()),
                 absl::StrCat(holding.shards()), BytesText(holding.bytes()),
                 StepText(holding.newest_step()), StepText(job.newest_whole_step()),
                 DurationText(static_cast<double>(holding.since_ms()) / 1000),
                 holding.store().id().empty() ? "-"
                                              : absl::StrCat(holding.store().id().substr(0, 8), "/",
                                                             holding.store().epoch())});
    }
  }
  return session.Finish(all, table.Text());
}

absl::StatusOr<int> Adopt(Session& session, const OrphanFlags& flags) {
  v1::AdoptJobRequest request;
  request.set_job(flags.job);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  NIBBLE_ASSIGN_OR_RETURN(const v1::AdoptJobResponse adopted, session.Call(kAdoptJob, request));
  std::string text = absl::StrCat(
      flags.job, flags.dry_run ? " would be known again with " : " is known again with ",
      adopted.checkpoints(), adopted.checkpoints() == 1 ? " checkpoint" : " checkpoints");
  if (adopted.incomplete() > 0) {
    absl::StrAppend(&text, "; of ", adopted.incomplete(),
                    " more, shards are on no worker that is present");
  }
  absl::StrAppend(&text, "\n", JobLine(adopted.job()), "\n");
  return session.Finish(adopted, text);
}

absl::StatusOr<int> Remove(Session& session, const OrphanFlags& flags) {
  v1::RemoveOrphanRequest request;
  request.set_job(flags.job);
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(const v1::RemoveOrphanResponse removed,
                          session.Call(kRemoveOrphan, request));
  return session.Finish(
      removed,
      absl::StrCat(removed.workers(), removed.workers() == 1 ? " worker is" : " workers are",
                   " told to delete what is left of ", flags.job, "\n"));
}

}  // namespace

void AddOrphanVerbs(Command checkpoint, int& exit_code) {
  RemoteVerb<OrphanFlags> orphans(checkpoint, "orphans",
                                  "What workers have of jobs that the coordinator does not know");
  orphans.Runs(exit_code, Orphans);
  orphans.app().Footer(
      "After the coordinator's store was lost or replaced. Nothing of it is deleted by itself:\n"
      "`nibble checkpoint adopt JOB` makes it known again, `remove-orphan JOB` deletes it.");

  RemoteVerb<OrphanFlags> adopt(checkpoint, "adopt",
                                "Make an orphaned job known again, with its checkpoints");
  adopt.app().Add("JOB", adopt->job, "id, as `nibble checkpoint orphans` lists it").Required();
  adopt.app().AddFlag("--dry-run", adopt->dry_run, "Show what would be known; change nothing");
  adopt.app().Add("--reason", adopt->reason, "Why, for the job's events");
  adopt.Runs(exit_code, Adopt);
  adopt.app().Footer(
      "It is paused: ranks that still run end with a checkpoint, `nibble job resume JOB`\n"
      "continues from it.");

  RemoteVerb<OrphanFlags> remove(
      checkpoint, "remove-orphan",
      "Delete what workers have of a job that the coordinator does not know");
  remove.app().Add("JOB", remove->job, "id, as `nibble checkpoint orphans` lists it").Required();
  remove.app().Add("--worker", remove->worker, "Only what this worker has");
  remove.app().Add("--reason", remove->reason, "Why, for the coordinator's journal");
  remove.Runs(exit_code, Remove);
  remove.app().Footer("Only after the coordinator's --orphan-grace; ranks that run are killed.");
}

}  // namespace nibble

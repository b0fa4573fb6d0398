#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_text.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "client/remote/upload_text.h"
#include "client/remote/verb.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {

namespace {

std::string StateText(const v1::Checkpoint& checkpoint) {
  if (checkpoint.harmed()) return "rolled back";
  return checkpoint.left() ? "abandoned" : Word(checkpoint.state());
}

// One line per checkpoint, oldest first; the response lists them newest first. With a column of
// uploads, and below what became of the last ones, if any was ever requested.
std::string CheckpointTable(const v1::ListCheckpointsResponse& all) {
  std::vector<std::string> head = {"STEP",  "ATTEMPT",         "STATE",    "SIZE",
                                   "RANKS", "COMMITTED (UTC)", "PINNED BY"};
  if (all.has_uploads()) head.emplace_back("UPLOAD");
  TextTable table(head);
  for (auto at = all.checkpoints().rbegin(); at != all.checkpoints().rend(); ++at) {
    std::vector<std::string> row = {absl::StrCat(at->ref().step()),
                                    absl::StrCat(at->ref().attempt()),
                                    StateText(*at),
                                    BytesText(at->bytes()),
                                    absl::StrCat(at->world()),
                                    TimeText(at->committed_unix_ms()),
                                    absl::StrJoin(at->pins(), ", ")};
    if (all.has_uploads()) row.push_back(UploadWord(all.uploads(), at->ref()));
    table.Add(row);
  }
  if (!all.has_uploads()) return table.Text();
  return absl::StrCat(table.Text(), "\n",
                      UploadsText(all.uploads(), absl::ToUnixMillis(absl::Now())), "\n");
}

// "verification 3 of train-7@300 is done on w1: …"
std::string TaskText(const v1::CheckpointRef& ref, const v1::CheckpointTask& task) {
  std::string text =
      absl::StrCat(task.kind() == v1::CHECKPOINT_TASK_KIND_EXPORT   ? "export "
                   : task.kind() == v1::CHECKPOINT_TASK_KIND_UPLOAD ? "upload "
                                                                    : "verification ",
                   task.number(), " of ", RefText(ref), " is ", Word(task.state()));
  if (!task.worker().empty()) absl::StrAppend(&text, " on ", task.worker());
  if (!task.destination().empty()) absl::StrAppend(&text, " to ", task.destination());
  if (!task.detail().empty()) absl::StrAppend(&text, ": ", task.detail());
  return text;
}

std::string CheckpointText(const v1::DescribeCheckpointResponse& described) {
  const v1::Checkpoint& checkpoint = described.checkpoint();
  TextList list;
  list.Add("checkpoint",
           absl::StrCat(RefText(checkpoint.ref()), " of attempt ", checkpoint.ref().attempt()));
  list.Add("state", checkpoint.harmed()
                        ? "rolled back: a guard found harm after it, and no attempt resumes from it"
                    : checkpoint.left()
                        ? "abandoned: a later attempt resumed from an earlier checkpoint"
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

struct Name {
  std::string job;
  int64_t step = -1;  // the newest
};

absl::StatusOr<Name> ParseName(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return Name{text};
  Name name = {text.substr(0, at)};
  if (name.job.empty() || !absl::SimpleAtoi(text.substr(at + 1), &name.step) || name.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: '", text, "' is not JOB@STEP with a step from 0"));
  }
  return name;
}

absl::StatusOr<v1::CheckpointRef> FindRef(Session& session, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Name name, ParseName(flags.name));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, name.job));
  v1::CheckpointRef ref;
  ref.set_job(job.id());
  ref.set_step(name.step);
  ref.set_attempt(flags.attempt);
  return ref;
}

absl::StatusOr<Reply> List(Session& session, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.name));
  v1::ListCheckpointsRequest request;
  request.set_job(job.id());
  request.set_with_uncommitted(flags.uncommitted);
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse all,
                          session.client().CallAllPages(kListCheckpoints, request));
  return ReplyOf(all, CheckpointTable(all));
}

absl::StatusOr<v1::DescribeCheckpointResponse> DescribeRef(Session& session,
                                                           const v1::CheckpointRef& ref) {
  v1::DescribeCheckpointRequest request;
  *request.mutable_ref() = ref;
  return session.Call(kDescribeCheckpoint, request);
}

absl::StatusOr<Reply> Describe(Session& session, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef ref, FindRef(session, flags));
  NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeCheckpointResponse described,
                          DescribeRef(session, ref));
  return ReplyOf(described, CheckpointText(described));
}

// Waits for the task; returns its present state also when the wait ends before. NotFound if newer
// tasks of the checkpoint have replaced it.
absl::StatusOr<v1::CheckpointTask> WaitForTask(Session& session, const v1::CheckpointRef& ref,
                                               int64_t number, bool no_wait) {
  Interrupt interrupt;
  const absl::Duration deadline = session.WaitDeadline();
  Backoff backoff = RetryBackoff();
  bool reported = false;
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeCheckpointResponse described,
                            DescribeRef(session, ref));
    const auto& tasks = described.checkpoint().tasks();
    const auto task =
        std::find_if(tasks.begin(), tasks.end(),
                     [number](const v1::CheckpointTask& one) { return one.number() == number; });
    if (task == tasks.end()) {
      return absl::NotFoundError(
          absl::StrCat("task: ", number, " of ", RefText(ref),
                       " has ended, but the coordinator stores only newer ones; request it again"));
    }
    const bool ended = task->state() != v1::CHECKPOINT_TASK_STATE_REQUESTED;
    if (ended || no_wait || interrupt.happened() || SteadyNow() >= deadline) return *task;
    if (!std::exchange(reported, true)) {
      session.Say(absl::StrCat(TaskText(ref, *task), "; waiting for its end, Ctrl-C detaches"));
    }
    interrupt.SleepFor(std::min(absl::FromChrono(backoff.Next()), deadline - SteadyNow()));
  }
}

// Requests a task of the checkpoint and waits for its end.
template <class Request, class Response>
absl::StatusOr<Reply> RunTask(Session& session, const CheckpointFlags& flags,
                              const Rpc<Request, Response>& rpc, Request request = {}) {
  NIBBLE_ASSIGN_OR_RETURN(*request.mutable_ref(), FindRef(session, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Response response, session.Call(rpc, request));
  const v1::CheckpointRef& ref = response.ref();
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointTask task,
                          WaitForTask(session, ref, response.task(), flags.no_wait));
  Reply reply = ReplyOf(task, TaskText(ref, task) + "\n");
  if (task.state() == v1::CHECKPOINT_TASK_STATE_FAILED) {
    reply.exit_code = kExitError;
  } else if (task.state() != v1::CHECKPOINT_TASK_STATE_DONE) {
    reply.exit_code = flags.no_wait ? kExitDone : kExitNotFinished;
    reply.notes = {
        absl::StrCat("run 'nibble checkpoint describe ", RefText(ref), "' to see its result")};
  }
  return reply;
}

absl::StatusOr<Reply> Verify(Session& session, const CheckpointFlags& flags) {
  return RunTask(session, flags, kVerifyCheckpoint);
}

// Resolves a relative target against the working directory, as for directories. The worker that
// writes it may be on another machine.
absl::StatusOr<std::string> AbsoluteTarget(Session& session, const std::string& target) {
  std::filesystem::path path(target);
  if (target.empty() || path.is_absolute()) return target;
  std::error_code error;
  path = std::filesystem::current_path(error) / path;
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "destination: '", target,
        "' is relative to the working directory, which does not exist: ", error.message()));
  }
  const std::string absolute = path.lexically_normal().string();
  session.Say(
      absl::StrCat("'", target, "' is ", absolute, " on the machine of the worker that writes it"));
  return absolute;
}

absl::StatusOr<Reply> Export(Session& session, const CheckpointFlags& flags) {
  v1::ExportCheckpointRequest request;
  NIBBLE_ASSIGN_OR_RETURN(*request.mutable_destination(), AbsoluteTarget(session, flags.target));
  return RunTask(session, flags, kExportCheckpoint, request);
}

template <class Request, class Response>
absl::StatusOr<Response> Change(Session& session, const CheckpointFlags& flags,
                                const Rpc<Request, Response>& rpc, Request request = {}) {
  if (!absl::StrContains(flags.name, '@')) return StepMissing(flags.name);
  NIBBLE_ASSIGN_OR_RETURN(*request.mutable_ref(), FindRef(session, flags));
  return session.Call(rpc, request);
}

absl::StatusOr<Reply> Pin(Session& session, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const auto response, Change(session, flags, kPinCheckpoint));
  return ReplyOf(response.checkpoint(),
                 absl::StrCat(RefText(response.checkpoint().ref()), " is pinned\n"));
}

absl::StatusOr<Reply> Unpin(Session& session, const CheckpointFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const auto response, Change(session, flags, kUnpinCheckpoint));
  const v1::Checkpoint& checkpoint = response.checkpoint();
  return ReplyOf(checkpoint,
                 absl::StrCat(RefText(checkpoint.ref()), checkpoint.pins().empty()
                                                             ? " is no longer pinned\n"
                                                             : " is still pinned by others\n"));
}

absl::StatusOr<Reply> Delete(Session& session, const CheckpointFlags& flags) {
  v1::DeleteCheckpointRequest request;
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(const auto response, Change(session, flags, kDeleteCheckpoint, request));
  return ReplyOf(response, absl::StrCat(RefText(response.ref()), " is deleted\n"));
}

}  // namespace

CheckpointSource JobCheckpoints() {
  return {.list = Remote<CheckpointFlags>("checkpoint list", List),
          .describe = Remote<CheckpointFlags>("checkpoint describe", Describe),
          .verify = Remote<CheckpointFlags>("checkpoint verify", Verify),
          .write = Remote<CheckpointFlags>("checkpoint export", Export),
          .pin = Remote<CheckpointFlags>("checkpoint pin", Pin),
          .unpin = Remote<CheckpointFlags>("checkpoint unpin", Unpin),
          .remove = Remote<CheckpointFlags>("checkpoint delete", Delete)};
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

absl::StatusOr<Reply> Orphans(Session& session, const OrphanFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListOrphansResponse all,
                          session.client().CallAllPages(kListOrphans));
  TextTable table({"JOB", "WORKER", "STATE", "ATTEMPT", "SHARDS", "SIZE", "NEWEST STEP",
                   "COMPLETE STEP", "FOR", "STORE"});
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
  return ReplyOf(all, table.Text());
}

absl::StatusOr<Reply> Adopt(Session& session, const OrphanFlags& flags) {
  v1::AdoptJobRequest request;
  request.set_job(flags.job);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  NIBBLE_ASSIGN_OR_RETURN(const v1::AdoptJobResponse adopted, session.Call(kAdoptJob, request));
  std::string text =
      absl::StrCat(flags.job, flags.dry_run ? " would be adopted with " : " was adopted with ",
                   Counted(adopted.checkpoints(), "checkpoint"));
  if (adopted.incomplete() > 0) {
    absl::StrAppend(&text, "; ", adopted.incomplete(),
                    " more lack shards that no present worker stores");
  }
  absl::StrAppend(&text, "\n", JobLine(adopted.job()));
  return ReplyOf(adopted, text);
}

absl::StatusOr<Reply> Remove(Session& session, const OrphanFlags& flags) {
  v1::RemoveOrphanRequest request;
  request.set_job(flags.job);
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(const v1::RemoveOrphanResponse removed,
                          session.Call(kRemoveOrphan, request));
  return ReplyOf(removed, absl::StrCat("requested of ", Counted(removed.workers(), "worker"),
                                       " to delete the data of ", flags.job, "\n"));
}

}  // namespace

void AddOrphanVerbs(Command checkpoint, int& exit_code) {
  RemoteVerb<OrphanFlags> orphans(checkpoint, "orphans",
                                  "List jobs that workers store and the coordinator does not know");
  orphans.Runs(exit_code, Orphans);
  orphans.app().Footer(
      "Jobs are orphaned when the coordinator's store is lost or replaced. Their data is kept "
      "until\n"
      "`nibble checkpoint adopt JOB` restores the job or `remove-orphan JOB` deletes it.");

  RemoteVerb<OrphanFlags> adopt(
      checkpoint, "adopt", "Restore an orphaned job, with its checkpoints, in the coordinator");
  adopt.app().Add("JOB", adopt->job, "id; see `nibble checkpoint orphans`").Required();
  adopt.app().AddFlag("--dry-run", adopt->dry_run, "show what would be restored; change nothing");
  adopt.app().Add("--reason", adopt->reason, "the reason, for the job's events");
  adopt.Runs(exit_code, Adopt);
  adopt.app().Footer(
      "The job is paused: ranks that still run take a checkpoint and stop. Run\n"
      "`nibble job resume JOB` to continue it.");

  RemoteVerb<OrphanFlags> remove(checkpoint, "remove-orphan",
                                 "Delete the data of an orphaned job from workers");
  remove.app().Add("JOB", remove->job, "id; see `nibble checkpoint orphans`").Required();
  remove.app().Add("--worker", remove->worker, "only the data on this worker");
  remove.app().Add("--reason", remove->reason, "the reason, for the coordinator's journal");
  remove.Runs(exit_code, Remove);
  remove.app().Footer(
      "Allowed once the coordinator's --orphan-grace has passed; ranks that still run are killed.");
}

}  // namespace nibble

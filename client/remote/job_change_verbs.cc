#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/job_watch.h"
#include "client/remote/recipe_strip.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/scheduling_flags.h"
#include "client/remote/verb.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/yaml_scalar.h"
#include "job/job_spec.h"
#include "job/overrides.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

struct SubmitFlags {
  RemoteFlags remote;
  std::string file;  // of submit
  std::string job;   // of fork
  int64_t at_step = -1;
  std::vector<std::string> set, layer;  // of submit, `set` names fields of the spec
  std::vector<std::string> env;
  std::vector<std::string> spec;  // of fork
  bool with_pending = false;
  std::string name, reason;
  SchedulingFlags scheduling;
  RestartFlags restarts;
  bool dry_run = false;
  bool watch = false;
};

// The new job's id, or the whole job for programs and dry runs.
absl::StatusOr<Reply> FinishSubmit(Session& session, const SubmitFlags& flags, const v1::Job& job) {
  if (flags.dry_run) {
    Reply reply = ReplyOf(job, JobText(job, absl::ToUnixMillis(absl::Now())));
    reply.notes = {"dry run: nothing was stored"};
    return reply;
  }
  const std::string id = absl::StrCat(job.id(), "\n");
  if (!flags.watch) return ReplyOf(job, id);
  // Programs get the stream of changes, which begins with the job.
  if (!session.for_programs()) session.Out(id);
  return WatchJob(session, job.id());
}

// The options of submit as settings of the spec.
absl::StatusOr<std::vector<std::string>> SettingsOf(const SubmitFlags& flags) {
  std::vector<std::string> settings = flags.set;
  for (std::string& setting : settings) {
    if (absl::StartsWith(setting, absl::StrCat(kPresetField, "="))) {
      setting = absl::StrCat("recipe.", setting);
    }
  }
  if (!flags.name.empty()) settings.push_back(absl::StrCat("name=", YamlQuoted(flags.name)));
  for (const std::string& variable : flags.env) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env: '", variable, "' is not NAME=TEXT, such as OMP_NUM_THREADS=4"));
    }
    settings.push_back(absl::StrCat("env.", variable.substr(0, equals), "=",
                                    YamlQuoted(variable.substr(equals + 1))));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> scheduling, flags.scheduling.Settings());
  settings.insert(settings.end(), scheduling.begin(), scheduling.end());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> restarts, flags.restarts.Settings());
  settings.insert(settings.end(), restarts.begin(), restarts.end());
  return settings;
}

absl::StatusOr<Reply> Submit(Session& session, const SubmitFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadJobText(flags.file));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> settings, SettingsOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const std::string yaml, OverrideFields(text, settings));
  // The coordinator checks the spec again; this check needs no coordinator.
  absl::StatusOr<JobSpec> spec = ParseJobSpec(text, settings);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(),
                        absl::StrCat(flags.file, ": ", std::string(spec.status().message())));
  }
  v1::SubmitJobRequest request;
  request.set_spec_yaml(yaml);
  // Ranks run on other machines, so relative paths are resolved here.
  if (MakePathsAbsolute(std::filesystem::current_path().string(), *spec)) {
    request.set_spec_yaml(ToYaml(*spec));
  }
  request.set_dry_run(flags.dry_run);
  if (flags.scheduling.project) {
    request.mutable_scheduling()->set_project(*flags.scheduling.project);
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::SubmitJobResponse response, session.Call(kSubmitJob, request));
  return FinishSubmit(session, flags, response.job());
}

// Which recipes of the parent's later steps a fork does not have; empty: it has all.
std::string DroppedText(const v1::Job& fork, const std::vector<v1::RecipeRevision>& parents) {
  std::string dropped;
  for (const v1::RecipeRevision& revision : EffectiveRevisions(parents)) {
    if (revision.first_step() <= fork.origin().checkpoint().step()) continue;
    if (revision.first_step() >= fork.shape().steps()) continue;
    absl::StrAppend(&dropped, dropped.empty() ? "" : ", ", "revision ", revision.number(),
                    " from step ", revision.first_step(), " (", RecipeText(revision.recipe()), ")");
  }
  if (dropped.empty()) return "";
  return absl::StrCat("not copied from ", fork.origin().checkpoint().job(), ": ", dropped,
                      "; --with-pending copies revisions of later steps");
}

absl::StatusOr<Reply> Fork(Session& session, const SubmitFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe change, ParseRecipeChange(flags.set, flags.layer));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job parent, FindJob(session, flags.job));
  v1::ForkJobRequest request;
  request.mutable_checkpoint()->set_job(parent.id());
  request.mutable_checkpoint()->set_step(flags.at_step);
  request.set_name(flags.name);
  if (!change.set.empty() || !change.layers.empty()) {
    *request.mutable_change() = ChangeMessage(change);
  }
  for (const std::string& setting : flags.spec) request.add_settings(setting);
  request.set_with_pending(flags.with_pending);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  if (flags.scheduling.given()) {
    v1::DescribeJobRequest described;
    described.set_job(parent.id());
    described.set_with_spec(true);
    NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeJobResponse response,
                            session.Call(kDescribeJob, described));
    NIBBLE_ASSIGN_OR_RETURN(const JobSpec spec, ParseJobSpec(response.spec_yaml()));
    NIBBLE_ASSIGN_OR_RETURN(
        const v1::JobScheduling scheduling,
        flags.scheduling.Over(parent.scheduling(), spec.training.batch, spec.training.micro_batch));
    *request.mutable_scheduling() = scheduling;
  }
  if (flags.restarts.given()) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::RestartPolicy policy,
                            flags.restarts.Over(parent.restart_policy()));
    *request.mutable_restart_policy() = policy;
  }
  // Before the change, so that no error can hide it.
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<v1::RecipeRevision> revisions,
                          ListRevisions(session, parent.id()));
  NIBBLE_ASSIGN_OR_RETURN(const v1::ForkJobResponse response, session.Call(kForkJob, request));
  const std::string dropped = flags.with_pending ? "" : DroppedText(response.job(), revisions);
  if (!dropped.empty()) session.Say(dropped);
  return FinishSubmit(session, flags, response.job());
}

void AddCommonOptions(RemoteVerb<SubmitFlags>& verb) {
  AddSchedulingOptions(verb.app(), verb->scheduling);
  AddRestartOptions(verb.app(), verb->restarts);
  verb.app().AddFlag("--dry-run", verb->dry_run, "check and show the job; store nothing");
  verb.app().AddFlag("--watch", verb->watch, "then follow the job, as `nibble job watch` does");
}

}  // namespace

void AddJobSubmitVerbs(Command job, int& exit_code) {
  RemoteVerb<SubmitFlags> submit(job, "submit", "Submit a job to the cluster and print its id");
  submit.app().Add("FILE", submit->file, "a job spec in YAML; -: stdin").Required();
  submit.app().Add("--name", submit->name, "name of the job; default: the spec's");
  submit.app()
      .Add("--set", submit->set,
           "FIELD=VALUE that overrides the spec, in YAML, such as training.steps=200, preset=mxfp4 "
           "or 'data.train=[a.txt, b.txt]'; see `nibble job show-defaults`")
      .OneValueEach();
  submit.app()
      .Add("--env", submit->env,
           "NAME=TEXT: an environment variable of the ranks, overrides the spec's env")
      .OneValueEach();
  AddCommonOptions(submit);
  submit.Runs(exit_code, Submit);
  submit.app().Footer(
      "Example: nibble job submit examples/quickstart.yaml --set training.steps=100 --watch");

  RemoteVerb<SubmitFlags> fork(
      job, "fork", "Start a new job from a checkpoint of another, under a changed recipe");
  AddJobOption(fork.app(), fork->job);
  fork.app()
      .Add("--at-step", fork->at_step, "step of the checkpoint to start from; default: the newest")
      .AtLeast(0);
  fork.app()
      .Add("--set", fork->set,
           "FIELD=VALUE that changes the recipe from that step, or preset=NAME; see `nibble recipe "
           "fields` and `presets`")
      .OneValueEach();
  fork.app()
      .Add("--layer", fork->layer,
           "SELECTOR:FIELD=VALUE[,FIELD=VALUE]..., such as 'last 4 blocks:fprop=bf16'")
      .OneValueEach();
  fork.app()
      .Add(
          "--spec", fork->spec,
          "FIELD=VALUE that overrides the parent's spec, such as training.stop_at=400: of training "
          "stop_at, repeat and validation, and checkpoints, early_stop, guards, metrics, notify")
      .OneValueEach();
  fork.app().AddFlag("--with-pending", fork->with_pending,
                     "also copy the parent's recipe changes of later steps");
  fork.app().Add("--name", fork->name,
                 "name of the new job; default: the parent's with -fork and a number");
  fork.app().Add("--reason", fork->reason, "the reason, for the job's events");
  AddCommonOptions(fork);
  fork.Runs(exit_code, Fork);
  fork.app().Footer(
      "Example: nibble job fork train-1 --at-step 200 --set wgrad=bf16 --name branch");
}

namespace {

struct ChangeFlags {
  RemoteFlags remote;
  std::string job, reason, grace;
  int32_t priority = 0;
  bool wait = false;
  RestartFlags restarts;
};

// Sends the change of the job, with the reason from the flags; returns the job after it.
template <class Request, class Response>
absl::StatusOr<v1::Job> Change(Session& session, const ChangeFlags& flags,
                               const Rpc<Request, Response>& rpc, Request request = {}) {
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(Response response,
                          CallOfJob(session, flags.job, rpc, std::move(request)));
  return std::move(*response.mutable_job());
}

Reply JobReply(const v1::Job& job, const std::string& remark = "") {
  return ReplyOf(job, absl::StrCat(JobLine(job), remark));
}

// A change without further settings.
template <const auto& rpc>
absl::StatusOr<Reply> PlainChange(Session& session, const ChangeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, Change(session, flags, rpc));
  return JobReply(job);
}

absl::StatusOr<Reply> Checkpoint(Session& session, const ChangeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, Change(session, flags, kCheckpointJob));
  return JobReply(job, absl::StrCat("a checkpoint is requested at the next step boundary; run "
                                    "'nibble checkpoint list ",
                                    job.id(), "' to see it when it is committed\n"));
}

absl::StatusOr<Reply> Cancel(Session& session, const ChangeFlags& flags) {
  v1::CancelJobRequest request;
  if (!flags.grace.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const absl::Duration grace, ParseSeconds(flags.grace));
    request.set_grace_ms(absl::ToInt64Milliseconds(grace));
  }
  NIBBLE_ASSIGN_OR_RETURN(v1::Job job, Change(session, flags, kCancelJob, request));
  if (!flags.wait || IsOver(job.state())) return JobReply(job);
  NIBBLE_ASSIGN_OR_RETURN(job, WaitForJob(session, job.id(), {}));
  Reply reply = JobReply(job);
  if (job.state() != v1::JOB_STATE_CANCELLED) reply.exit_code = ExitCodeOfJob(job.state());
  return reply;
}

absl::StatusOr<Reply> Priority(Session& session, const ChangeFlags& flags) {
  v1::SetJobPriorityRequest request;
  request.set_priority(flags.priority);
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, Change(session, flags, kSetJobPriority, request));
  return JobReply(job, absl::StrCat("priority ", job.scheduling().priority(), " in queue ",
                                    job.scheduling().queue(), "\n"));
}

// Unset flags keep their values.
absl::StatusOr<Reply> Restarts(Session& session, const ChangeFlags& flags) {
  if (!flags.restarts.given()) {
    return absl::InvalidArgumentError(
        "restart_policy: nothing to change; give --max-restarts, --backoff or --max-backoff");
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job found, FindJob(session, flags.job));
  NIBBLE_ASSIGN_OR_RETURN(const v1::RestartPolicy policy,
                          flags.restarts.Over(found.restart_policy()));
  v1::SetJobRestartPolicyRequest request;
  *request.mutable_restart_policy() = policy;
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, Change(session, flags, kSetJobRestartPolicy, request));
  return JobReply(job, absl::StrCat("restarts ", RestartsText(job), "\n"));
}

class Verbs {
 public:
  Verbs(Command job, int& exit_code) : job_(job), exit_code_(exit_code) {}

  RemoteVerb<ChangeFlags> Add(const char* name, const char* help,
                              absl::StatusOr<Reply> (*run)(Session&, const ChangeFlags&)) {
    RemoteVerb<ChangeFlags> verb(job_, name, help);
    AddJobOption(verb.app(), verb->job);
    verb.app().Add("--reason", verb->reason, "the reason, for the job's events");
    verb.Runs(exit_code_, run);
    return verb;
  }

 private:
  Command job_;
  int& exit_code_;
};

}  // namespace

void AddJobChangeVerbs(Command job, int& exit_code) {
  Verbs verbs(job, exit_code);
  verbs.Add("pause", "Pause a job at the next step boundary; it keeps its slots",
            PlainChange<kPauseJob>);
  verbs.Add("resume", "Resume a paused job, or withdraw a requested pause",
            PlainChange<kResumeJob>);
  verbs.Add("checkpoint", "Take a checkpoint at the next step boundary", Checkpoint);
  RemoteVerb<ChangeFlags> cancel =
      verbs.Add("cancel", "Stop a job after a last checkpoint", Cancel);
  AddSecondsOption(cancel.app(), "--grace", cancel->grace,
                   "time until the job is killed, such as 30s; default: 5m");
  cancel.app().AddFlag("--wait", cancel->wait,
                       "wait for the end; the exit code is 0 if the job was cancelled");
  TimeoutEndsWait(cancel.app());
  verbs.Add("kill", "Stop a job at once, without a checkpoint", PlainChange<kKillJob>);
  RemoteVerb<ChangeFlags> priority =
      verbs.Add("priority", "Change the priority of a job", Priority);
  priority.app()
      .Add("PRIORITY", priority->priority,
           "-1000 to 1000; jobs of higher priority are scheduled first")
      .Required();
  RemoteVerb<ChangeFlags> restarts = verbs.Add(
      "restart-policy",
      "Change how often and when failed attempts are retried; unset options keep their values",
      Restarts);
  AddRestartOptions(restarts.app(), restarts->restarts);
}

}  // namespace nibble

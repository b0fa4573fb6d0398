#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/job_watch.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/scheduling_flags.h"
#include "client/remote/verb.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/yaml_scalar.h"
#include "job/job_spec.h"
#include "job/overrides.h"

namespace nibble {
namespace {

struct SubmitFlags {
  RemoteFlags remote;
  std::string file;  // of submit
  std::string job;   // of fork
  int64_t at_step = -1;
  std::vector<std::string> set, layer;  // of submit, `set` names fields of the spec
  std::vector<std::string> env;
  bool with_pending = false;
  std::string name, reason;
  SchedulingFlags scheduling;
  RestartFlags restarts;
  bool dry_run = false;
  bool watch = false;
};

// Prints the new job's id, or the whole job for programs and dry runs.
absl::StatusOr<int> FinishSubmit(Session& session, const SubmitFlags& flags, const v1::Job& job) {
  const std::string id = absl::StrCat(job.id(), "\n");
  if (flags.dry_run) {
    NIBBLE_RETURN_IF_ERROR(session.Print(job, JobText(job, absl::ToUnixMillis(absl::Now()))));
    session.Say("a dry run: nothing is stored");
    return kExitDone;
  }
  // With --watch, programs get the stream of changes, which begins with the job.
  if (!(flags.watch && session.flags().for_programs())) {
    NIBBLE_RETURN_IF_ERROR(session.Print(job, id));
  }
  if (!flags.watch) return kExitDone;
  return WatchJob(session, job.id());
}

// The options of submit as settings of the spec.
absl::StatusOr<std::vector<std::string>> SettingsOf(const SubmitFlags& flags) {
  std::vector<std::string> settings = flags.set;
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
  const absl::StatusOr<std::vector<std::string>> scheduling = flags.scheduling.Settings();
  if (!scheduling.ok()) return scheduling.status();
  settings.insert(settings.end(), scheduling->begin(), scheduling->end());
  const absl::StatusOr<std::vector<std::string>> restarts = flags.restarts.Settings();
  if (!restarts.ok()) return restarts.status();
  settings.insert(settings.end(), restarts->begin(), restarts->end());
  return settings;
}

absl::StatusOr<int> Submit(Session& session, const SubmitFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadJobText(flags.file));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> settings, SettingsOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const std::string yaml, OverrideFields(text, settings));
  // The coordinator checks the same; here, errors are found without one.
  absl::StatusOr<JobSpec> spec = ParseJobSpec(yaml);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(),
                        absl::StrCat(flags.file, ": ", std::string(spec.status().message())));
  }
  v1::SubmitJobRequest request;
  request.set_spec_yaml(yaml);
  // Ranks run elsewhere, so relative paths are resolved here.
  if (MakePathsAbsolute(std::filesystem::current_path().string(), *spec)) {
    request.set_spec_yaml(ToYaml(*spec));
  }
  request.set_dry_run(flags.dry_run);
  NIBBLE_ASSIGN_OR_RETURN(const v1::SubmitJobResponse response, session.Call(kSubmitJob, request));
  return FinishSubmit(session, flags, response.job());
}

absl::StatusOr<int> Fork(Session& session, const SubmitFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe change, ParseRecipeChange(flags.set, flags.layer));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job parent, FindJob(session, flags.job));
  v1::ForkJobRequest request;
  request.mutable_checkpoint()->set_job(parent.id());
  request.mutable_checkpoint()->set_step(flags.at_step);
  request.set_name(flags.name);
  if (!change.set.empty() || !change.layers.empty()) {
    *request.mutable_change() = ChangeMessage(change);
  }
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
    const absl::StatusOr<v1::JobScheduling> scheduling =
        flags.scheduling.Over(parent.scheduling(), spec.training.batch, spec.training.micro_batch);
    if (!scheduling.ok()) return scheduling.status();
    *request.mutable_scheduling() = *scheduling;
  }
  if (flags.restarts.given()) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::RestartPolicy policy,
                            flags.restarts.Over(parent.restart_policy()));
    *request.mutable_restart_policy() = policy;
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::ForkJobResponse response, session.Call(kForkJob, request));
  return FinishSubmit(session, flags, response.job());
}

void AddCommonOptions(RemoteVerb<SubmitFlags>& verb) {
  AddSchedulingOptions(verb.app(), verb->scheduling);
  AddRestartOptions(verb.app(), verb->restarts);
  verb.app().AddFlag("--dry-run", verb->dry_run, "Check and tell; store nothing");
  verb.app().AddFlag("--watch", verb->watch, "Then as `nibble job watch`");
}

}  // namespace

void AddJobSubmitVerbs(Command job, int& exit_code) {
  RemoteVerb<SubmitFlags> submit(job, "submit", "Run a job on the cluster; prints its id");
  submit.app().Add("FILE", submit->file, "a spec in YAML; - reads stdin").Required();
  submit.app().Add("--name", submit->name, "instead of the spec's");
  submit.app()
      .Add("--set", submit->set,
           "FIELD=VALUE over the spec's, as YAML, such as training.steps=200 or "
           "'data.train=[a.txt, b.txt]'; see `nibble job show-defaults`")
      .OneValueEach();
  submit.app()
      .Add("--env", submit->env, "NAME=TEXT for the ranks' processes, over the spec's env")
      .OneValueEach();
  AddCommonOptions(submit);
  submit.Runs(exit_code, Submit);
  submit.app().Footer(
      "Example: nibble job submit examples/quickstart.yaml --set training.steps=100 --watch");

  RemoteVerb<SubmitFlags> fork(
      job, "fork", "A new job that goes on from a checkpoint of another, under a changed recipe");
  AddJobOption(fork.app(), fork->job);
  fork.app()
      .Add("--at-step", fork->at_step, "checkpoint to begin with; else the newest")
      .AtLeast(0);
  fork.app()
      .Add("--set", fork->set, "FIELD=VALUE from there on; see `nibble recipe fields`")
      .OneValueEach();
  fork.app()
      .Add("--layer", fork->layer,
           "SELECTOR:FIELD=VALUE[,FIELD=VALUE]..., such as 'last 4 blocks:fprop=bf16'")
      .OneValueEach();
  fork.app().AddFlag("--with-pending", fork->with_pending,
                     "Also take the parent's changes that begin later");
  fork.app().Add("--name", fork->name, "of the new job; else the parent's");
  fork.app().Add("--reason", fork->reason, "why, for the job's events");
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

// Takes the reason from the flags; returns the job after the change.
template <class Request, class Response>
absl::StatusOr<v1::Job> Ask(Session& session, const ChangeFlags& flags, const v1::Job& job,
                            const Rpc<Request, Response>& rpc, Request request) {
  request.set_job(job.id());
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(Response response, session.Call(rpc, std::move(request)));
  return std::move(*response.mutable_job());
}

template <class Request, class Response>
absl::StatusOr<v1::Job> Change(Session& session, const ChangeFlags& flags,
                               const Rpc<Request, Response>& rpc, Request request) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  return Ask(session, flags, *job, rpc, std::move(request));
}

// `remark`: a further line for people, about what the job's state does not show.
absl::StatusOr<int> Told(Session& session, const absl::StatusOr<v1::Job>& job,
                         std::string (*remark)(const v1::Job&) = nullptr) {
  if (!job.ok()) return job.status();
  return session.Finish(*job,
                        absl::StrCat(JobLine(*job), remark == nullptr ? "" : remark(*job) + "\n"));
}

absl::StatusOr<int> Pause(Session& session, const ChangeFlags& flags) {
  return Told(session, Change(session, flags, kPauseJob, v1::PauseJobRequest()));
}

absl::StatusOr<int> Resume(Session& session, const ChangeFlags& flags) {
  return Told(session, Change(session, flags, kResumeJob, v1::ResumeJobRequest()));
}

absl::StatusOr<int> Checkpoint(Session& session, const ChangeFlags& flags) {
  return Told(session, Change(session, flags, kCheckpointJob, v1::CheckpointJobRequest()),
              [](const v1::Job& job) {
                return absl::StrCat(
                    "a checkpoint is asked for at the next step boundary; `nibble "
                    "checkpoint list ",
                    job.id(), "` shows it when it is whole");
              });
}

absl::StatusOr<int> Cancel(Session& session, const ChangeFlags& flags) {
  v1::CancelJobRequest request;
  if (!flags.grace.empty()) {
    const absl::StatusOr<absl::Duration> grace = ParseSeconds(flags.grace);
    if (!grace.ok()) return grace.status();
    request.set_grace_ms(absl::ToInt64Milliseconds(*grace));
  }
  const absl::StatusOr<v1::Job> job = Change(session, flags, kCancelJob, request);
  if (!flags.wait || !job.ok() || IsOver(job->state())) return Told(session, job);
  const absl::StatusOr<v1::Job> over = WaitForJob(session, job->id(), {});
  const absl::StatusOr<int> told = Told(session, over);
  if (!told.ok() || over->state() == v1::JOB_STATE_CANCELLED) return told;
  return ExitCodeOfJob(over->state());
}

absl::StatusOr<int> Kill(Session& session, const ChangeFlags& flags) {
  return Told(session, Change(session, flags, kKillJob, v1::KillJobRequest()));
}

absl::StatusOr<int> Priority(Session& session, const ChangeFlags& flags) {
  v1::SetJobPriorityRequest request;
  request.set_priority(flags.priority);
  return Told(session, Change(session, flags, kSetJobPriority, request), [](const v1::Job& job) {
    return absl::StrCat("priority ", job.scheduling().priority(), " in queue ",
                        job.scheduling().queue());
  });
}

// Unset flags keep their values.
absl::StatusOr<int> Restarts(Session& session, const ChangeFlags& flags) {
  if (!flags.restarts.given()) {
    return absl::InvalidArgumentError(
        "restart_policy: nothing to change; --max-restarts, --backoff or --max-backoff says what");
  }
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  NIBBLE_ASSIGN_OR_RETURN(const v1::RestartPolicy policy,
                          flags.restarts.Over(job->restart_policy()));
  v1::SetJobRestartPolicyRequest request;
  *request.mutable_restart_policy() = policy;
  return Told(session, Ask(session, flags, *job, kSetJobRestartPolicy, request),
              [](const v1::Job& job) { return absl::StrCat("restarts ", RestartsText(job)); });
}

class Verbs {
 public:
  Verbs(Command job, int& exit_code) : job_(job), exit_code_(exit_code) {}

  RemoteVerb<ChangeFlags> Add(const char* name, const char* help,
                              absl::StatusOr<int> (*run)(Session&, const ChangeFlags&)) {
    RemoteVerb<ChangeFlags> verb(job_, name, help);
    AddJobOption(verb.app(), verb->job);
    verb.app().Add("--reason", verb->reason, "why, for the job's events");
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
  verbs.Add("pause", "Stand still at the next step boundary; the job keeps its slots", Pause);
  verbs.Add("resume", "Go on after a pause, or take back one that is asked for", Resume);
  verbs.Add("checkpoint", "Take a checkpoint at the next step boundary", Checkpoint);
  RemoteVerb<ChangeFlags> cancel = verbs.Add("cancel", "End a job with a last checkpoint", Cancel);
  AddSecondsOption(cancel.app(), "--grace", cancel->grace,
                   "after this it is killed, such as 30s; 5m where not given");
  cancel.app().AddFlag("--wait", cancel->wait, "Until it has ended; 0 where it is cancelled");
  TimeoutEndsWait(cancel.app());
  verbs.Add("kill", "End a job at once, without a checkpoint", Kill);
  RemoteVerb<ChangeFlags> priority =
      verbs.Add("priority", "Say which of waiting jobs goes first", Priority);
  priority.app().Add("PRIORITY", priority->priority, "higher goes first; -1000 to 1000").Required();
  RemoteVerb<ChangeFlags> restarts = verbs.Add(
      "restart-policy", "Say when a failed attempt is followed by another; what is not given stays",
      Restarts);
  AddRestartOptions(restarts.app(), restarts->restarts);
}

}  // namespace nibble

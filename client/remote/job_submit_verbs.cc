#include "client/remote/job_submit_verbs.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/local/exit_code.h"
#include "client/local/number_check.h"
#include "client/local/read_spec.h"
#include "client/local/recipe_flags.h"
#include "client/remote/find_job.h"
#include "client/remote/job_text.h"
#include "client/remote/job_watch.h"
#include "client/remote/recipe_message.h"
#include "client/remote/scheduling_flags.h"
#include "client/remote/verb.h"
#include "common/yaml_scalar.h"
#include "job/job_spec.h"
#include "job/overrides.h"
#include "job/spec_paths.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

struct Flags {
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

// The new job's id on stdout, or all of it for programs, or what a dry run would make.
absl::StatusOr<int> Finish(Session& session, const Flags& flags, const v1::Job& job) {
  const std::string id = absl::StrCat(job.id(), "\n");
  if (flags.dry_run) {
    const absl::Status status = session.Print(job, JobText(job, absl::ToUnixMillis(absl::Now())));
    if (!status.ok()) return status;
    session.Say("a dry run: nothing is stored");
    return kExitDone;
  }
  // Watched for programs, the changes are what is printed: the first of them is the job.
  if (!(flags.watch && session.flags().for_programs())) {
    const absl::Status status = session.Print(job, id);
    if (!status.ok()) return status;
  }
  if (!flags.watch) return kExitDone;
  return WatchJob(session, job.id());
}

// Fields of the spec that the options of submit set.
absl::StatusOr<std::vector<std::string>> SettingsOf(const Flags& flags) {
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

absl::StatusOr<int> Submit(Session& session, const Flags& flags) {
  const absl::StatusOr<std::string> text = ReadJobText(flags.file);
  if (!text.ok()) return text.status();
  const absl::StatusOr<std::vector<std::string>> settings = SettingsOf(flags);
  if (!settings.ok()) return settings.status();
  const absl::StatusOr<std::string> yaml = OverrideFields(*text, *settings);
  if (!yaml.ok()) return yaml.status();
  // Checked here as there, so that what is wrong is told with or without a coordinator.
  absl::StatusOr<JobSpec> spec = ParseJobSpec(*yaml);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(),
                        absl::StrCat(flags.file, ": ", std::string(spec.status().message())));
  }
  v1::SubmitJobRequest request;
  request.set_spec_yaml(*yaml);
  // The ranks run elsewhere; what is relative means files as they are here.
  if (MakePathsAbsolute(std::filesystem::current_path().string(), *spec)) {
    request.set_spec_yaml(ToYaml(*spec));
  }
  request.set_dry_run(flags.dry_run);
  const absl::StatusOr<v1::SubmitJobResponse> response = session.Call(&Stub::SubmitJob, request);
  if (!response.ok()) return response.status();
  return Finish(session, flags, response->job());
}

absl::StatusOr<int> Fork(Session& session, const Flags& flags) {
  const absl::StatusOr<Recipe> change = ParseRecipeChange(flags.set, flags.layer);
  if (!change.ok()) return change.status();
  const absl::StatusOr<v1::Job> parent = FindJob(session, flags.job);
  if (!parent.ok()) return parent.status();
  v1::ForkJobRequest request;
  request.mutable_checkpoint()->set_job(parent->id());
  request.mutable_checkpoint()->set_step(flags.at_step);
  request.set_name(flags.name);
  if (!change->set.empty() || !change->layers.empty()) {
    *request.mutable_change() = ChangeMessage(*change);
  }
  request.set_with_pending(flags.with_pending);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  if (flags.scheduling.given()) {
    v1::DescribeJobRequest described;
    described.set_job(parent->id());
    described.set_with_spec(true);
    const absl::StatusOr<v1::DescribeJobResponse> response =
        session.Call(&Stub::DescribeJob, described);
    if (!response.ok()) return response.status();
    const absl::StatusOr<JobSpec> spec = ParseJobSpec(response->spec_yaml());
    if (!spec.ok()) return spec.status();
    const absl::StatusOr<v1::JobScheduling> scheduling = flags.scheduling.Over(
        parent->scheduling(), spec->training.batch, spec->training.micro_batch);
    if (!scheduling.ok()) return scheduling.status();
    *request.mutable_scheduling() = *scheduling;
  }
  if (flags.restarts.given()) {
    const absl::StatusOr<v1::RestartPolicy> policy = flags.restarts.Over(parent->restart_policy());
    if (!policy.ok()) return policy.status();
    *request.mutable_restart_policy() = *policy;
  }
  const absl::StatusOr<v1::ForkJobResponse> response = session.Call(&Stub::ForkJob, request);
  if (!response.ok()) return response.status();
  return Finish(session, flags, response->job());
}

void AddCommonOptions(RemoteVerb<Flags>& verb) {
  AddSchedulingOptions(verb.app(), verb->scheduling);
  AddRestartOptions(verb.app(), verb->restarts);
  verb.app()->add_flag("--dry-run", verb->dry_run, "Check and tell; store nothing");
  verb.app()->add_flag("--watch", verb->watch, "Then as `nibble job watch`");
}

}  // namespace

void AddJobSubmitVerbs(CLI::App* job, int& exit_code) {
  RemoteVerb<Flags> submit(job, "submit", "Run a job on the cluster; prints its id");
  submit.app()->add_option("FILE", submit->file, "a spec in YAML; - reads stdin")->required();
  submit.app()->add_option("--name", submit->name, "instead of the spec's");
  submit.app()
      ->add_option("--set", submit->set,
                   "FIELD=VALUE over the spec's, as YAML, such as training.steps=200 or "
                   "'data.train=[a.txt, b.txt]'; see `nibble job show-defaults`")
      ->allow_extra_args(false);
  submit.app()
      ->add_option("--env", submit->env, "NAME=TEXT for the ranks' processes, over the spec's env")
      ->allow_extra_args(false);
  AddCommonOptions(submit);
  submit.Runs(exit_code, Submit);
  submit.app()->footer(
      "Example: nibble job submit examples/quickstart.yaml --set training.steps=100 --watch");

  RemoteVerb<Flags> fork(
      job, "fork", "A new job that goes on from a checkpoint of another, under a changed recipe");
  AddJobOption(fork.app(), fork->job);
  fork.app()
      ->add_option("--at-step", fork->at_step, "checkpoint to begin with; else the newest")
      ->check(WholeFor(fork->at_step, 0));
  fork.app()
      ->add_option("--set", fork->set, "FIELD=VALUE from there on; see `nibble recipe fields`")
      ->allow_extra_args(false);
  fork.app()
      ->add_option("--layer", fork->layer,
                   "SELECTOR:FIELD=VALUE[,FIELD=VALUE]..., such as 'last 4 blocks:fprop=bf16'")
      ->allow_extra_args(false);
  fork.app()->add_flag("--with-pending", fork->with_pending,
                       "Also take the parent's changes that begin later");
  fork.app()->add_option("--name", fork->name, "of the new job; else the parent's");
  fork.app()->add_option("--reason", fork->reason, "why, for the job's events");
  AddCommonOptions(fork);
  fork.Runs(exit_code, Fork);
  fork.app()->footer(
      "Example: nibble job fork train-1 --at-step 200 --set wgrad=bf16 --name branch");
}

}  // namespace nibble

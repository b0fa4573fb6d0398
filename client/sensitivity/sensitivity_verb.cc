#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_text.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/sensitivity/fork_plan.h"
#include "client/sensitivity/fork_runner.h"
#include "client/sensitivity/precision_table.h"
#include "client/sensitivity/ranking.h"
#include "client/sensitivity/sensitivity_command.h"
#include "client/sensitivity/sensitivity_text.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "model/outline.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

struct SensitivityFlags {
  SensitivityFlags() { remote.formats = {"csv"}; }

  RemoteFlags remote;
  std::string job;
  int64_t at_step = -1;
  int64_t steps = 100;
  int64_t seeds = 3;
  std::string by = "block";
  int64_t blocks = 1;
  std::vector<std::string> groups;
  int32_t at_once = 4;
  int32_t priority = -100;
  bool keep = false;
  bool apply = false;
  bool statistics = false;
  bool stop = false;
  bool dry_run = false;
};

// The job and what its spec says about it.
struct Subject {
  v1::Job job;
  JobSpec spec;
  Outline outline;
  std::vector<v1::RecipeRevision> revisions;  // by number
};

absl::StatusOr<Subject> FindSubject(Session& session, const std::string& given) {
  Subject subject;
  NIBBLE_ASSIGN_OR_RETURN(subject.job, FindJob(session, given));
  v1::DescribeJobRequest request;
  request.set_job(subject.job.id());
  request.set_with_spec(true);
  NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeJobResponse described,
                          session.Call(kDescribeJob, request));
  NIBBLE_ASSIGN_OR_RETURN(subject.spec, ParseJobSpec(described.spec_yaml()));
  NIBBLE_ASSIGN_OR_RETURN(subject.outline, MakeOutline(subject.spec.model));
  NIBBLE_ASSIGN_OR_RETURN(subject.revisions, ListRevisions(session, subject.job.id()));
  return subject;
}

// ---- The checkpoint to start from --------------------------------------------------------------

// Steps of the checkpoints that leave room for `steps` more, newest first.
absl::StatusOr<std::vector<int64_t>> CheckpointSteps(Session& session, const Subject& subject,
                                                     int64_t steps) {
  v1::ListCheckpointsRequest request;
  request.set_job(subject.job.id());
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse all,
                          session.client().CallAllPages(kListCheckpoints, request));
  std::set<int64_t, std::greater<>> found;
  for (const v1::Checkpoint& checkpoint : all.checkpoints()) {
    if (checkpoint.state() != v1::CHECKPOINT_STATE_COMMITTED || checkpoint.left()) continue;
    if (checkpoint.ref().step() + steps <= subject.spec.training.steps) {
      found.insert(checkpoint.ref().step());
    }
  }
  return std::vector<int64_t>(found.begin(), found.end());
}

absl::Status NoCheckpoint(const Subject& subject, const SensitivityFlags& flags,
                          const std::vector<int64_t>& steps) {
  const std::string room = absl::StrCat(" that leaves ", Counted(flags.steps, "step"),
                                        " before training.steps, ", subject.spec.training.steps);
  if (flags.at_step >= 0) {
    return absl::NotFoundError(absl::StrCat(
        "at-step: ", subject.job.id(), " has no good checkpoint of step ", flags.at_step, room,
        steps.empty() ? "" : absl::StrCat("; it has ", absl::StrJoin(steps, ", "))));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(subject.job.id(), " has no good checkpoint", room,
                   IsOver(subject.job.state())
                       ? ""
                       : absl::StrCat("; run 'nibble job checkpoint ", subject.job.id(), "'")));
}

// ---- The experiment ----------------------------------------------------------------------------

std::vector<FieldSetting> SettingsFrom(
    const google::protobuf::RepeatedPtrField<v1::FieldSetting>& messages) {
  std::vector<FieldSetting> settings;
  for (const v1::FieldSetting& setting : messages) {
    settings.push_back({setting.field(), setting.value()});
  }
  return settings;
}

// The recipe in effect at the step.
Recipe RecipeAt(const Subject& subject, int64_t step) {
  const v1::RecipeRevision* in_effect = nullptr;
  for (const v1::RecipeRevision& revision : subject.revisions) {
    if (revision.refused().empty() && revision.first_step() <= step) in_effect = &revision;
  }
  if (in_effect == nullptr) return subject.spec.recipe;
  Recipe recipe = {.preset = in_effect->recipe().preset(),
                   .set = SettingsFrom(in_effect->recipe().set()),
                   .layers = {}};
  for (const v1::LayerRule& rule : in_effect->recipe().layers()) {
    recipe.layers.push_back({rule.match(), SettingsFrom(rule.set())});
  }
  return recipe;
}

absl::StatusOr<Experiment> MakeExperiment(const Subject& subject, const SensitivityFlags& flags,
                                          int64_t step) {
  Experiment experiment = {.job = subject.job.id(),
                           .step = step,
                           .steps = flags.steps,
                           .repeats = flags.seeds,
                           .keep = flags.keep,
                           .recipe = RecipeAt(subject, step),
                           .arms = {}};
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved,
                          Resolve(experiment.recipe, subject.outline, 0));
  absl::StatusOr<std::vector<LayerGroup>> groups =
      !flags.groups.empty() ? GroupsOf(flags.groups, subject.outline, resolved)
      : flags.by == "kind"  ? GroupsByKind(subject.outline, resolved)
                            : GroupsByBlock(subject.outline, resolved, flags.blocks);
  NIBBLE_RETURN_IF_ERROR(groups.status());
  NIBBLE_ASSIGN_OR_RETURN(
      experiment.arms,
      MakeArms(experiment.recipe, subject.outline, subject.spec.data.sequence, *std::move(groups)));
  return experiment;
}

// With --at-step that step; otherwise that of the newest forks of the same experiment, which an
// earlier run of the command has left, or the newest checkpoint with enough steps after it.
absl::StatusOr<Experiment> ChooseExperiment(Session& session, const Subject& subject,
                                            const SensitivityFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const ForksByName forks, FindForks(session, subject.job.id()));
  std::set<int64_t, std::greater<>> tried;
  for (const auto& [name, fork] : forks) {
    const int64_t step = fork.origin().checkpoint().step();
    if (flags.at_step < 0 || flags.at_step == step) tried.insert(step);
  }
  for (const int64_t step : tried) {
    absl::StatusOr<Experiment> experiment = MakeExperiment(subject, flags, step);
    if (!experiment.ok()) continue;
    const std::vector<PlannedFork> planned = PlanForks(*experiment);
    const bool begun = std::any_of(planned.begin(), planned.end(), [&](const PlannedFork& fork) {
      return forks.contains(fork.name);
    });
    if (!begun) continue;
    if (flags.at_step < 0) {
      session.Say(absl::StrCat("continues the experiment that was begun at step ", step,
                               "; give --at-step to begin another"));
    }
    return experiment;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                          CheckpointSteps(session, subject, flags.steps));
  const bool found = flags.at_step < 0
                         ? !steps.empty()
                         : std::find(steps.begin(), steps.end(), flags.at_step) != steps.end();
  if (!found) return NoCheckpoint(subject, flags, steps);
  return MakeExperiment(subject, flags, flags.at_step < 0 ? steps.front() : flags.at_step);
}

// ---- What the verb does ------------------------------------------------------------------------

Reply ReplyWith(const SensitivityFlags& flags, const Rendered& rendered) {
  return {.text = flags.remote.print == "csv" ? rendered.csv : rendered.table,
          .json = rendered.json};
}

absl::StatusOr<Reply> Statistics(Session& session, const SensitivityFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  // The end of the log usually has the newest sample.
  constexpr int32_t kTail = 50'000;
  NIBBLE_ASSIGN_OR_RETURN(std::vector<std::string> lines, ReadEventLines(session, job.id(), kTail));
  absl::StatusOr<PrecisionSampleSet> sample = NewestSample(lines);
  if (!sample.ok() && lines.size() == kTail) {
    NIBBLE_ASSIGN_OR_RETURN(lines, ReadEventLines(session, job.id(), 0));
    sample = NewestSample(lines);
  }
  NIBBLE_RETURN_IF_ERROR(sample.status());
  return ReplyWith(flags, RenderPrecision(job.id(), MakePrecisionTable(*sample)));
}

absl::StatusOr<Reply> Stop(Session& session, const SensitivityFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t killed, StopForks(session, job.id()));
  return Reply{
      .text = absl::StrCat(Counted(killed, "unfinished fork"), " of ", job.id(), " killed\n"),
      .json = absl::StrCat("{\n  \"killed\": ", killed, "\n}\n")};
}

// Promotes the best group in the job, from its next step on.
absl::StatusOr<std::string> Apply(Session& session, const Subject& subject,
                                  const Experiment& experiment, const Ranking& ranking) {
  if (!ranking.best) return "nothing to apply";
  const std::string selector = experiment.arms[ranking.groups[*ranking.best].arm].group.selector;
  v1::SetRecipeRequest request;
  request.set_job(subject.job.id());
  request.set_expected_revision(-1);
  *request.mutable_change() = ChangeMessage(PromotionTo16Bits(selector));
  request.set_reason(absl::StrCat("sensitivity at step ", experiment.step));
  NIBBLE_ASSIGN_OR_RETURN(const v1::SetRecipeResponse response, session.Call(kSetRecipe, request));
  return absl::StrCat("applied: revision ", response.revision(), " of ", subject.job.id(),
                      " promotes '", selector, "' from step ", response.first_step());
}

absl::StatusOr<Reply> Sensitivity(Session& session, const SensitivityFlags& flags) {
  if (flags.statistics) return Statistics(session, flags);
  if (flags.stop) return Stop(session, flags);
  NIBBLE_ASSIGN_OR_RETURN(const Subject subject, FindSubject(session, flags.job));
  if (flags.apply && IsOver(subject.job.state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("apply: ", subject.job.id(), " is ", Word(subject.job.state()),
                     ", and the recipe of a job that has ended cannot be changed; without --apply "
                     "the command for a fork is printed"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Experiment experiment, ChooseExperiment(session, subject, flags));
  if (flags.dry_run) {
    Reply reply = ReplyWith(flags, RenderPlan(experiment));
    reply.notes = {"dry run: no fork was submitted"};
    return reply;
  }
  NIBBLE_ASSIGN_OR_RETURN(const ForkRun run,
                          RunForks(session, subject.job, experiment,
                                   {.at_once = flags.at_once, .priority = flags.priority}));
  if (!run.complete) {
    session.Say(absl::StrCat(run.results.size(), " of ", PlanForks(experiment).size(),
                             " forks have ended; submitted ones keep running. Run the same command "
                             "to continue, or 'nibble job sensitivity ",
                             experiment.job, " --stop' to kill them"));
    return Reply{.exit_code = kExitNotFinished};
  }
  NIBBLE_ASSIGN_OR_RETURN(const Ranking ranking, Rank(experiment, run.results));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job now, DescribeJob(session, subject.job.id()));
  Reply reply = ReplyWith(flags, RenderRanking(experiment, subject.outline, ranking, run.results,
                                               !IsOver(now.state())));
  // The table and JSON have them.
  if (flags.remote.print == "csv") {
    for (const std::string& fork : ranking.not_counted) {
      reply.notes.push_back(absl::StrCat("not counted: ", fork));
    }
  }
  if (flags.apply) {
    NIBBLE_ASSIGN_OR_RETURN(std::string applied, Apply(session, subject, experiment, ranking));
    reply.notes.push_back(std::move(applied));
  }
  return reply;
}

}  // namespace

void AddSensitivityVerb(Command app, int& exit_code) {
  RemoteVerb<SensitivityFlags> verb(NounOf(app, "job", "Jobs of a cluster"), "sensitivity",
                                    "Measure by short forks which layers cost the most, with one "
                                    "group promoted to bf16 at a time");
  const Command command = verb.app();
  AddJobOption(command, verb->job);
  TimeoutEndsWait(command);
  command
      .Add("--at-step", verb->at_step,
           "step of the checkpoint to fork; default: that of an experiment to continue, else the "
           "newest")
      .AtLeast(0);
  command.Add("--steps", verb->steps, "steps of each fork").AtLeast(1).ShowDefault();
  command
      .Add("--seeds", verb->seeds,
           "repeats of each fork, each with its own samples and stochastic rounding")
      .WholeNumber(1, 1000)
      .ShowDefault();
  const Option by = command.Add("--by", verb->by, "what a group is: a block, or a kind of layer");
  by.OneOf({"block", "kind"}).ShowDefault();
  command.Add("--blocks", verb->blocks, "neighbouring blocks of a group").AtLeast(1).ShowDefault();
  command
      .Add("--groups", verb->groups,
           "SELECTOR,...: these groups instead, such as 'mlp.down,first 2 blocks'")
      .OneValueEach()
      .SplitAt(',')
      .Excludes("--by")
      .Excludes("--blocks");
  command.Add("--at-once", verb->at_once, "most unfinished forks").AtLeast(1).ShowDefault();
  command.Add("--priority", verb->priority, "priority of the forks")
      .WholeNumber(-1000, 1000)
      .ShowDefault();
  command.AddFlag("--keep", verb->keep,
                  "write a checkpoint at the end of each fork; without it only their metrics and "
                  "logs remain");
  command.AddFlag("--apply", verb->apply,
                  "then promote the best group in the job, if its improvement is significant");
  command.AddFlag("--dry-run", verb->dry_run, "show the groups and the number of forks; run none");
  const Option statistics = command.AddFlag(
      "--statistics", verb->statistics,
      "no forks: rank the layers by quantisation error, from the job's precision statistics");
  const Option stop = command.AddFlag(
      "--stop", verb->stop, "kill unfinished forks of earlier runs and unpin their checkpoint");
  for (const char* other : {"--at-step", "--steps", "--seeds", "--by", "--blocks", "--groups",
                            "--keep", "--apply", "--dry-run"}) {
    statistics.Excludes(other);
    stop.Excludes(other);
  }
  stop.Excludes(statistics);
  verb.Runs(exit_code, Sensitivity);
  command.Footer("Example: nibble job sensitivity train-1 --by kind --steps 200 --seeds 4");
}

}  // namespace nibble

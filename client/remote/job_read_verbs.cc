#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_recording.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/loss_comparison.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

struct ListFlags {
  RemoteFlags remote;
  std::vector<std::string> states;
  std::string owner, queue, project;
  bool active = false;
  bool wide = false;
  int limit = 100;
};

struct JobFlags {
  RemoteFlags remote;
  std::string job;
  bool with_spec = false;
  int64_t after = 0;
  int limit = 0;
  // For `wait`.
  std::vector<std::string> states;
  int64_t step = 0;
};

struct CompareFlags {
  CompareFlags() { remote.formats = {"csv"}; }

  RemoteFlags remote;
  std::vector<std::string> jobs;
  std::string by = "step";
  int rows = 20;
};

std::vector<std::string> StateWords() {
  std::vector<std::string> words;
  for (int i = v1::JobState_MIN + 1; i <= v1::JobState_MAX; ++i) {
    words.push_back(Word(static_cast<v1::JobState>(i)));
  }
  return words;
}

v1::JobState StateOf(const std::string& word) {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  v1::JobState_Parse(absl::StrCat("JOB_STATE_", absl::AsciiStrToUpper(word)), &state);
  return state;
}

absl::StatusOr<Reply> List(Session& session, const ListFlags& flags) {
  v1::ListJobsRequest request;
  for (const std::string& word : flags.states) request.add_states(StateOf(word));
  if (flags.active) {
    for (const std::string& word : StateWords()) {
      if (!IsOver(StateOf(word))) request.add_states(StateOf(word));
    }
  }
  request.set_owner(flags.owner);
  request.set_queue(flags.queue);
  request.set_project(flags.project);
  v1::ListJobsResponse listed;
  if (flags.limit == 0) {
    NIBBLE_ASSIGN_OR_RETURN(listed, session.client().CallAllPages(kListJobs, request));
  } else {
    request.mutable_page()->set_size(flags.limit);
    NIBBLE_ASSIGN_OR_RETURN(listed, session.Call(kListJobs, request));
  }
  const bool more = !listed.next_token().empty();
  listed.clear_next_token();
  Reply reply = ReplyOf(listed, JobTable({listed.jobs().begin(), listed.jobs().end()},
                                         absl::ToUnixMillis(absl::Now()), flags.wide));
  if (more) reply.notes = {"there are more jobs; list all of them with --limit 0"};
  return reply;
}

absl::StatusOr<Reply> Describe(Session& session, const JobFlags& flags) {
  v1::DescribeJobRequest request;
  request.set_with_spec(flags.with_spec);
  NIBBLE_ASSIGN_OR_RETURN(const auto described,
                          CallOfJob(session, flags.job, kDescribeJob, request));
  v1::GetRecipeRequest of_recipe;
  of_recipe.set_job(described.job().id());
  NIBBLE_ASSIGN_OR_RETURN(const auto recipe, session.Call(kGetRecipe, of_recipe));
  v1::GetJobMetricsRequest of_metrics;
  of_metrics.set_job(described.job().id());
  of_metrics.set_max_samples(1);
  NIBBLE_ASSIGN_OR_RETURN(const auto metrics, session.Call(kGetJobMetrics, of_metrics));
  const v1::StepSample& latest = metrics.latest();
  const std::string loss = metrics.has_latest()
                               ? absl::StrFormat("%.4f at step %d", latest.loss(), latest.step())
                               : "none reported since the coordinator started";
  std::string text = JobText(described.job(), absl::ToUnixMillis(absl::Now()),
                             RecipeText(recipe.revision().recipe()), loss);
  if (flags.with_spec) absl::StrAppend(&text, "\n", described.spec_yaml());
  return ReplyOf(described, text);
}

absl::StatusOr<Reply> Events(Session& session, const JobFlags& flags) {
  v1::ListJobEventsRequest request;
  request.set_after_number(flags.after);
  request.set_limit(flags.limit);
  NIBBLE_ASSIGN_OR_RETURN(const auto listed,
                          CallOfJob(session, flags.job, kListJobEvents, request));
  Reply reply = ReplyOf(listed, EventTable({listed.events().begin(), listed.events().end()}));
  if (listed.dropped() > 0) {
    reply.notes = {absl::StrCat("the oldest ", listed.dropped(), " events are no longer stored")};
  }
  return reply;
}

absl::StatusOr<Reply> Wait(Session& session, const JobFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(v1::Job job, FindJob(session, flags.job));
  bool reached = false;
  if (flags.step > 0) {
    NIBBLE_ASSIGN_OR_RETURN(job, WaitForStep(session, job.id(), flags.step));
    reached = job.next_step() >= flags.step;
  } else {
    std::vector<v1::JobState> states;
    for (const std::string& word : flags.states) states.push_back(StateOf(word));
    NIBBLE_ASSIGN_OR_RETURN(job, WaitForJob(session, job.id(), states));
    reached = std::find(states.begin(), states.end(), job.state()) != states.end();
  }
  return ReplyOf(job, JobLine(job), reached ? kExitDone : ExitCodeOfJob(job.state()));
}

absl::StatusOr<Reply> Compare(Session& session, const CompareFlags& flags) {
  std::vector<LossSeries> jobs;
  std::vector<std::string> missing;
  for (const std::string& given : flags.jobs) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, given));
    NIBBLE_ASSIGN_OR_RETURN(const JobRecording recording,
                            ReadRecording(session, job, {.only_losses = true}));
    missing.insert(missing.end(), recording.notes.begin(), recording.notes.end());
    jobs.push_back({job.id(), LossSamples(recording.record)});
  }
  const absl::StatusOr<Comparison> comparison =
      CompareLosses(jobs, flags.by == "tokens" ? ComparedBy::kTokens : ComparedBy::kStep);
  if (!comparison.ok()) {
    missing.insert(missing.begin(), std::string(comparison.status().message()));
    return absl::Status(comparison.status().code(), absl::StrJoin(missing, "; "));
  }
  Reply reply = ComparisonReply(*comparison, flags.rows, flags.remote.print);
  reply.notes = std::move(missing);
  return reply;
}

}  // namespace

void AddJobReadVerbs(Command job, int& exit_code) {
  RemoteVerb<ListFlags> list(job, "list", "List the jobs of the cluster, newest first");
  list.app()
      .Add("--state", list->states, "only jobs in this state; repeatable")
      .OneValueEach()
      .OneOf(StateWords());
  list.app().AddFlag("--active", list->active, "only unfinished jobs");
  list.app().Add("--owner", list->owner, "only jobs of this owner");
  list.app().Add("--queue", list->queue, "only jobs in this queue");
  list.app().Add("--project", list->project, "only jobs of this project");
  list.app().AddFlag("--wide", list->wide,
                     "every column, nothing shortened; otherwise a table of 80 columns");
  list.app()
      .Add("--limit", list->limit, "only the newest N jobs; 0: all")
      .WholeNumber(0, 1000)
      .ShowDefault();
  list.Runs(exit_code, List);

  RemoteVerb<JobFlags> describe(
      job, "describe", "Describe a job: its loss and recipe, why it is pending, where it runs");
  AddJobOption(describe.app(), describe->job);
  describe.app().AddFlag("--spec", describe->with_spec, "also print the spec as it was submitted");
  describe.Runs(exit_code, Describe);

  RemoteVerb<JobFlags> events(job, "events", "List the events of a job, oldest first");
  AddJobOption(events.app(), events->job);
  events.app()
      .Add("--after", events->after, "only events after this number, which `-o json` prints")
      .AtLeast(0);
  events.app().Add("--limit", events->limit, "at most N events; 0: all that are stored").AtLeast(0);
  events.Runs(exit_code, Events);

  RemoteVerb<JobFlags> wait(job, "wait",
                            "Wait for a job to finish: exit code 0 succeeded, 100 failed, 101 "
                            "unfinished, 103 cancelled");
  AddJobOption(wait.app(), wait->job);
  TimeoutEndsWait(wait.app());
  wait.app()
      .Add("--for", wait->states, "wait until the job is in this state; repeatable")
      .OneValueEach()
      .OneOf(StateWords());
  wait.app()
      .Add("--step", wait->step, "wait until N steps are complete")
      .AtLeast(1)
      .Excludes("--for");
  wait.Runs(exit_code, Wait);
  wait.app().Footer("Example: nibble job wait train-1 --step 100 --timeout 1h");

  RemoteVerb<CompareFlags> compare(job, "compare",
                                   "Compare the losses of jobs at equal steps or equal tokens");
  compare.app()
      .Add("JOB", compare->jobs, "two to sixteen jobs, named as in `nibble job describe`")
      .Required()
      .Expect(2, 16);
  compare.app()
      .Add("--by", compare->by,
           "step: the common steps; tokens: as many tokens trained on, for jobs with different "
           "batches")
      .OneOf({"step", "tokens"})
      .ShowDefault();
  compare.app().Add("--rows", compare->rows, "rows of the table; 0: all").AtLeast(0).ShowDefault();
  compare.Runs(exit_code, Compare);
}

}  // namespace nibble

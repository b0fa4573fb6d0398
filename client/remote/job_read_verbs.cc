#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/shell/output.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

struct ListFlags {
  RemoteFlags remote;
  std::vector<std::string> states;
  std::string owner, queue;
  bool active = false;
  int limit = 100;
};

struct JobFlags {
  RemoteFlags remote;
  std::string job;
  bool with_spec = false;
  int64_t after = 0;
  int limit = 0;
  // Of wait.
  std::vector<std::string> states;
  int64_t step = 0;
};

struct CompareFlags {
  RemoteFlags remote;
  std::vector<std::string> jobs;
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

absl::StatusOr<int> List(Session& session, const ListFlags& flags) {
  v1::ListJobsRequest request;
  for (const std::string& word : flags.states) request.add_states(StateOf(word));
  if (flags.active) {
    for (const std::string& word : StateWords()) {
      if (!IsOver(StateOf(word))) request.add_states(StateOf(word));
    }
  }
  request.set_owner(flags.owner);
  request.set_queue(flags.queue);
  v1::ListJobsResponse listed;
  bool more = false;
  if (flags.limit == 0) {
    NIBBLE_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, ListAllJobs(session, request));
    for (v1::Job& job : jobs) *listed.add_jobs() = std::move(job);
  } else {
    request.mutable_page()->set_size(flags.limit);
    NIBBLE_ASSIGN_OR_RETURN(v1::ListJobsResponse page, session.Call(kListJobs, request));
    listed = std::move(page);
    more = !listed.next_token().empty();
    listed.clear_next_token();
  }
  const std::vector<v1::Job> jobs(listed.jobs().begin(), listed.jobs().end());
  NIBBLE_RETURN_IF_ERROR(session.Print(listed, JobTable(jobs, absl::ToUnixMillis(absl::Now()))));
  if (more) session.Say(absl::StrCat("there are more; --limit 0 lists all"));
  return kExitDone;
}

absl::StatusOr<int> Describe(Session& session, const JobFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::DescribeJobRequest request;
  request.set_job(job->id());
  request.set_with_spec(flags.with_spec);
  NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeJobResponse described,
                          session.Call(kDescribeJob, request));
  std::string text = JobText(described.job(), absl::ToUnixMillis(absl::Now()));
  if (flags.with_spec) absl::StrAppend(&text, "\n", described.spec_yaml());
  return session.Finish(described, text);
}

absl::StatusOr<int> Events(Session& session, const JobFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::ListJobEventsRequest request;
  request.set_job(job->id());
  request.set_after_number(flags.after);
  request.set_limit(flags.limit);
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobEventsResponse listed,
                          session.Call(kListJobEvents, request));
  NIBBLE_RETURN_IF_ERROR(
      session.Print(listed, EventTable({listed.events().begin(), listed.events().end()})));
  if (listed.dropped() > 0) {
    session.Say(absl::StrCat("the oldest ", listed.dropped(), " are no longer kept"));
  }
  return kExitDone;
}

absl::StatusOr<int> WaitStep(Session& session, const std::string& id, int64_t step) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, WaitForStep(session, id, step));
  NIBBLE_RETURN_IF_ERROR(session.Print(job, JobLine(job)));
  return job.next_step() >= step ? kExitDone : ExitCodeOfJob(job.state());
}

absl::StatusOr<int> Wait(Session& session, const JobFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job found, FindJob(session, flags.job));
  if (flags.step > 0) return WaitStep(session, found.id(), flags.step);
  std::vector<v1::JobState> states;
  for (const std::string& word : flags.states) states.push_back(StateOf(word));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, WaitForJob(session, found.id(), states));
  NIBBLE_RETURN_IF_ERROR(session.Print(job, JobLine(job)));
  for (const v1::JobState state : states) {
    if (job.state() == state) return kExitDone;
  }
  return ExitCodeOfJob(job.state());
}

absl::StatusOr<int> Compare(Session& session, const CompareFlags& flags) {
  std::vector<LossSeries> jobs;
  for (const std::string& given : flags.jobs) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, given));
    v1::GetJobMetricsRequest request;
    request.set_job(job.id());
    request.set_max_samples(kMostComparedSamples);
    NIBBLE_ASSIGN_OR_RETURN(const v1::GetJobMetricsResponse metrics,
                            session.Call(kGetJobMetrics, request));
    jobs.push_back({job.id(), {metrics.series().begin(), metrics.series().end()}});
  }
  NIBBLE_ASSIGN_OR_RETURN(const Comparison comparison, CompareLosses(jobs));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          ComparisonText(comparison, session.flags().print, flags.rows));
  session.Out(text);
  return kExitDone;
}

}  // namespace

void AddJobReadVerbs(Command job, int& exit_code) {
  RemoteVerb<ListFlags> list(job, "list", "Jobs of the cluster, newest first");
  list.app()
      .Add("--state", list->states, "only in this state; may be repeated")
      .OneValueEach()
      .OneOf(StateWords());
  list.app().AddFlag("--active", list->active, "Only what is not finished");
  list.app().Add("--owner", list->owner, "only of this owner");
  list.app().Add("--queue", list->queue, "only in this queue");
  list.app()
      .Add("--limit", list->limit, "the newest so many; 0: all")
      .WholeNumber(0, 1000)
      .ShowDefault();
  list.Runs(exit_code, List);

  RemoteVerb<JobFlags> describe(
      job, "describe", "Everything about a job: why it waits, its attempts, where it runs");
  AddJobOption(describe.app(), describe->job);
  describe.app().AddFlag("--spec", describe->with_spec, "Also the spec as it was submitted");
  describe.Runs(exit_code, Describe);

  RemoteVerb<JobFlags> events(job, "events", "What happened to a job, oldest first");
  AddJobOption(events.app(), events->job);
  events.app()
      .Add("--after", events->after, "only those after this number (`-o json` tells it)")
      .AtLeast(0);
  events.app().Add("--limit", events->limit, "so many at most; 0: all that are kept").AtLeast(0);
  events.Runs(exit_code, Events);

  RemoteVerb<JobFlags> wait(
      job, "wait",
      "Until a job is finished: 0 done, 100 it failed, 103 it was cancelled, 101 not yet");
  AddJobOption(wait.app(), wait->job);
  TimeoutEndsWait(wait.app());
  wait.app()
      .Add("--for", wait->states, "until it is in this state; may be repeated")
      .OneValueEach()
      .OneOf(StateWords());
  wait.app().Add("--step", wait->step, "until so many steps are made").AtLeast(1).Excludes("--for");
  wait.Runs(exit_code, Wait);
  wait.app().Footer("Example: nibble job wait train-1 --step 100 --timeout 1h");

  RemoteVerb<CompareFlags> compare(job, "compare", "The losses of jobs at the steps all have");
  compare.app()
      .Add("JOB", compare->jobs, "two to sixteen, each as in `nibble job describe`")
      .Required()
      .Expect(2, 16);
  compare.app()
      .Add("--rows", compare->rows, "of the table; 0: every common step")
      .AtLeast(0)
      .ShowDefault();
  compare.Runs(exit_code, Compare);
}

}  // namespace nibble

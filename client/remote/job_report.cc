// `nibble job report`: collects what the coordinator and the workers know about a job, and writes
// it as one HTML file (client/report).
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/remote/event_lines.h"
#include "client/remote/job_text.h"
#include "client/remote/loss_comparison.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/report/report_data.h"
#include "client/report/report_page.h"
#include "client/report/run_events.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace nibble {
namespace {

struct ReportFlags {
  RemoteFlags remote;
  std::string job;
  std::vector<std::string> compared;
  std::string by;    // "step" or "tokens"; empty: tokens where steps have different numbers of them
  std::string file;  // empty: JOB.html
};

// Each worker that ran rank 0, with the latest attempt in which it did: it has one event log.
std::map<std::string, int64_t> EventLogsOf(const v1::Job& job) {
  std::map<std::string, int64_t> logs;
  const auto add = [&logs](const v1::Attempt& attempt) {
    for (const v1::Placement& placement : attempt.placements()) {
      if (placement.first_rank() != 0) continue;
      int64_t& latest = logs[placement.worker()];
      latest = std::max(latest, attempt.number());
    }
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) add(attempt);
  if (job.has_attempt()) add(job.attempt());
  return logs;
}

// On which attempts ran.
std::set<std::string> WorkersOf(const v1::Job& job) {
  std::set<std::string> workers;
  const auto add = [&workers](const v1::Attempt& attempt) {
    for (const v1::Placement& placement : attempt.placements()) workers.insert(placement.worker());
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) add(attempt);
  if (job.has_attempt()) add(job.attempt());
  return workers;
}

absl::StatusOr<ReportedJob> CollectJob(Session& session, const std::string& given,
                                       bool with_precision, std::vector<std::string>& notes) {
  ReportedJob reported;
  NIBBLE_ASSIGN_OR_RETURN(reported.job, FindJob(session, given));
  const std::string& id = reported.job.id();
  RunEvents events(with_precision);
  int64_t lines = 0;
  for (const auto& [worker, attempt] : EventLogsOf(reported.job)) {
    events.BeginLog();
    JobEventLines log(session, id, attempt);
    const absl::Status read = log.Read(false, {.take =
                                                   [&](std::string_view line) {
                                                     events.Add(line);
                                                     ++lines;
                                                     return absl::OkStatus();
                                                   },
                                               .pause = [] { return absl::OkStatus(); }});
    if (read.ok()) continue;
    notes.push_back(absl::StrCat(
        id, ": the event log of worker ", worker, " could not be read",
        lines > 0 ? " to its end" : "; curves are from the coordinator's samples, without ",
        lines > 0 ? "" : "the parts of a step and without precision statistics", ": ",
        read.message()));
  }
  reported.record = events.Finish();
  if (reported.record.unreadable > 0) {
    notes.push_back(absl::StrCat(id, ": ", Counted(reported.record.unreadable, "line"),
                                 " of the event log could not be read"));
  }
  v1::GetJobMetricsRequest request;
  request.set_job(id);
  request.set_max_samples(kMostComparedSamples);
  NIBBLE_ASSIGN_OR_RETURN(const v1::GetJobMetricsResponse metrics,
                          session.Call(kGetJobMetrics, request));
  AddSamples({metrics.series().begin(), metrics.series().end()}, reported.record);
  return reported;
}

absl::Status CollectRecipe(Session& session, ReportInput& input) {
  const std::string& id = input.job.job.id();
  v1::ListRecipeRevisionsRequest request;
  request.set_job(id);
  request.set_all(true);
  bool more = true;
  while (more) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::ListRecipeRevisionsResponse listed,
                            session.Call(kListRecipeRevisions, request));
    for (const v1::RecipeRevision& revision : listed.revisions()) {
      input.revisions.push_back({revision, RecipeText(revision.recipe())});
      request.set_after_number(revision.number());
    }
    more = listed.more() && !listed.revisions().empty();
  }
  v1::GetRecipeRequest recipe;
  recipe.set_job(id);
  recipe.set_resolved(true);
  NIBBLE_ASSIGN_OR_RETURN(const v1::GetRecipeResponse resolved, session.Call(kGetRecipe, recipe));
  input.recipe_table = resolved.table();
  input.recipe_revision = resolved.revision().number();
  return absl::OkStatus();
}

absl::Status CollectHistory(Session& session, ReportInput& input) {
  const v1::Job& job = input.job.job;
  v1::ListJobEventsRequest events;
  events.set_job(job.id());
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobEventsResponse listed,
                          session.Call(kListJobEvents, events));
  for (const v1::JobEvent& event : listed.events()) {
    input.events.push_back({event, EventText(event)});
  }
  if (listed.dropped() > 0) {
    input.notes.push_back(
        absl::StrCat("the oldest ", Counted(listed.dropped(), "event"), " are no longer stored"));
  }
  v1::ListCheckpointsRequest checkpoints;
  checkpoints.set_job(job.id());
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse stored,
                          session.client().CallAllPages(kListCheckpoints, checkpoints));
  input.checkpoints = {stored.checkpoints().begin(), stored.checkpoints().end()};
  v1::DescribeJobRequest describe;
  describe.set_job(job.id());
  describe.set_with_spec(true);
  NIBBLE_ASSIGN_OR_RETURN(v1::DescribeJobResponse described, session.Call(kDescribeJob, describe));
  input.spec_yaml = std::move(*described.mutable_spec_yaml());
  constexpr size_t kMostWorkers = 16;
  const std::set<std::string> workers = WorkersOf(job);
  for (const std::string& worker : workers) {
    if (input.workers.size() == kMostWorkers) {
      input.notes.push_back(absl::StrCat("the environment shows ", kMostWorkers, " of the ",
                                         workers.size(), " workers"));
      break;
    }
    v1::DescribeWorkerRequest request;
    request.set_worker(worker);
    absl::StatusOr<v1::DescribeWorkerResponse> found = session.Call(kDescribeWorker, request);
    if (absl::IsNotFound(found.status())) continue;  // it was forgotten since
    NIBBLE_RETURN_IF_ERROR(found.status());
    input.workers.push_back(std::move(*found->mutable_worker()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Reply> Report(Session& session, const ReportFlags& flags) {
  ReportInput input;
  input.now_unix_ms = absl::ToUnixMillis(absl::Now());
  NIBBLE_ASSIGN_OR_RETURN(input.job, CollectJob(session, flags.job, true, input.notes));
  for (const std::string& given : flags.compared) {
    NIBBLE_ASSIGN_OR_RETURN(ReportedJob job, CollectJob(session, given, false, input.notes));
    const auto is_same = [&](const ReportedJob& other) { return other.job.id() == job.job.id(); };
    if (is_same(input.job) || std::any_of(input.compared.begin(), input.compared.end(), is_same)) {
      return absl::InvalidArgumentError(
          absl::StrCat("compare: '", given, "' is ", job.job.id(), ", which is in the report"));
    }
    input.compared.push_back(std::move(job));
  }
  input.by_tokens = flags.by.empty() ? std::any_of(input.compared.begin(), input.compared.end(),
                                                   [&](const ReportedJob& other) {
                                                     return other.job.shape().tokens_per_step() !=
                                                            input.job.job.shape().tokens_per_step();
                                                   })
                                     : flags.by == "tokens";
  NIBBLE_RETURN_IF_ERROR(CollectRecipe(session, input));
  NIBBLE_RETURN_IF_ERROR(CollectHistory(session, input));
  const std::string page = ReportPage(ReportData(input));
  const std::string file =
      flags.file.empty() ? absl::StrCat(input.job.job.id(), ".html") : flags.file;
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(file, page));
  Reply reply;
  reply.text =
      absl::StrCat("wrote ", file, ", ", BytesText(static_cast<int64_t>(page.size())), ": ",
                   Counted(std::ssize(input.job.record.steps), "step"), ", ",
                   Counted(std::ssize(input.job.record.precision), "precision sample"), "\n");
  reply.notes = input.notes;
  return reply;
}

}  // namespace

void AddJobReportVerb(Command job, int& exit_code) {
  const auto flags = std::make_shared<ReportFlags>();
  Command report = job.AddSubcommand(
      "report", "Write a report of a job as one HTML file that opens without a network");
  AddJobOption(report, flags->job);
  report
      .Add("--compare", flags->compared,
           "also show the losses of this job, named as in `nibble job describe`; repeatable; "
           "differences are relative to the first one")
      .Expect(1, 15);
  report
      .Add("--by", flags->by,
           "compare at equal steps or at equal tokens trained on, and begin over these; default: "
           "tokens if a job has another number of tokens per step")
      .OneOf({"step", "tokens"});
  report.Add("-o,--output", flags->file, "the file to write; default: JOB.html");
  AddServerOptions(report, flags->remote);
  report.OnParsed([flags, &exit_code] {
    exit_code = Finish("job report", flags->remote.print, Remote("job report", Report)(*flags));
  });
  report.Footer("Example: nibble job report ablation --compare baseline -o ablation.html");
}

}  // namespace nibble

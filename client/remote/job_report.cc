// `nibble job report`: collects what the coordinator and the workers know about a job, and writes
// it as one HTML file (client/report).
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/remote/job_recording.h"
#include "client/remote/job_text.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/report/report_data.h"
#include "client/report/report_page.h"
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

struct CollectedJob {
  ReportedJob reported;
  int64_t missing = 0;  // logged steps
};

absl::StatusOr<CollectedJob> CollectJob(Session& session, const std::string& given,
                                        bool with_precision, std::vector<std::string>& notes) {
  NIBBLE_ASSIGN_OR_RETURN(v1::Job job, FindJob(session, given));
  NIBBLE_ASSIGN_OR_RETURN(JobRecording recording,
                          ReadRecording(session, job, {.with_precision = with_precision}));
  notes.insert(notes.end(), recording.notes.begin(), recording.notes.end());
  CollectedJob collected = {{std::move(job), std::move(recording.record), {}}, recording.missing};
  NIBBLE_ASSIGN_OR_RETURN(std::vector<v1::RecipeRevision> revisions,
                          ListRevisions(session, collected.reported.job.id()));
  for (v1::RecipeRevision& revision : revisions) {
    std::string recipe = RecipeText(revision.recipe());
    collected.reported.revisions.push_back({std::move(revision), std::move(recipe)});
  }
  return collected;
}

absl::Status CollectRecipe(Session& session, ReportInput& input) {
  v1::GetRecipeRequest recipe;
  recipe.set_job(input.job.job.id());
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
  NIBBLE_ASSIGN_OR_RETURN(CollectedJob collected,
                          CollectJob(session, flags.job, true, input.notes));
  input.job = std::move(collected.reported);
  for (const std::string& given : flags.compared) {
    NIBBLE_ASSIGN_OR_RETURN(CollectedJob found, CollectJob(session, given, false, input.notes));
    ReportedJob& job = found.reported;
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
                   Counted(std::ssize(input.job.record.steps), "step"),
                   collected.missing > 0 ? absl::StrCat(", ", collected.missing, " missing") : "",
                   ", ", Counted(std::ssize(input.job.record.precision), "precision sample"), "\n");
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

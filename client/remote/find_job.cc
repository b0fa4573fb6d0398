#include "client/remote/find_job.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/remote/text.h"
#include "common/near_name.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

absl::Status Ambiguous(const std::string& given, const std::vector<const v1::Job*>& found) {
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(found.size(), kNamed); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", found[i]->id(), " (", Word(found[i]->state()), ")");
  }
  if (found.size() > kNamed) absl::StrAppend(&names, " and ", found.size() - kNamed, " more");
  return absl::InvalidArgumentError(
      absl::StrCat("job: '", given, "' may be ", names, "; say the whole id"));
}

}  // namespace

absl::StatusOr<v1::Job> ChooseJob(const std::string& given, const std::vector<v1::Job>& jobs) {
  std::vector<const v1::Job*> named, begun;
  std::vector<std::string> ids;
  for (const v1::Job& job : jobs) {
    if (job.id() == given) return job;
    if (job.name() == given) named.push_back(&job);
    if (absl::StartsWith(job.id(), given)) begun.push_back(&job);
    ids.push_back(job.id());
  }
  const std::vector<const v1::Job*>& found = named.empty() ? begun : named;
  if (found.size() == 1) return *found[0];
  if (!found.empty()) return Ambiguous(given, found);
  const std::string near = NearestName(given, ids);
  return absl::NotFoundError(absl::StrCat("job: there is no '", given, "'",
                                          near.empty() ? "" : "; did you mean '", near,
                                          near.empty() ? "" : "'?"));
}

absl::StatusOr<std::vector<v1::Job>> ListAllJobs(Session& session, v1::ListJobsRequest request) {
  const absl::StatusOr<v1::ListJobsResponse> all =
      session.CallAllPages(&CoordinatorClient::Stub::ListJobs, std::move(request));
  if (!all.ok()) return all.status();
  return std::vector<v1::Job>(all->jobs().begin(), all->jobs().end());
}

void AddJobOption(CLI::App* verb, std::string& job) {
  verb->add_option("JOB", job, "id, such as train-7, or a name or beginning that only one has")
      ->required();
}

absl::StatusOr<v1::Job> FindJob(Session& session, const std::string& given) {
  if (given.empty()) return absl::InvalidArgumentError("job: '' is no job");
  v1::DescribeJobRequest request;
  request.set_job(given);
  absl::StatusOr<v1::DescribeJobResponse> exact =
      session.Call(&CoordinatorClient::Stub::DescribeJob, request);
  if (exact.ok()) return std::move(*exact->mutable_job());
  // A text that cannot be an id may be told from one that is none by another code.
  if (!absl::IsNotFound(exact.status()) && !absl::IsInvalidArgument(exact.status())) {
    return exact.status();
  }
  const absl::StatusOr<std::vector<v1::Job>> jobs = ListAllJobs(session, {});
  if (!jobs.ok()) return jobs.status();
  absl::StatusOr<v1::Job> job = ChooseJob(given, *jobs);
  if (job.ok()) session.Say(absl::StrCat("'", given, "' is ", job->id()));
  return job;
}

}  // namespace nibble

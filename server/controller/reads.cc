#include "server/controller/reads.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/checkpoint_care.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/views.h"

namespace nibble {
namespace {

constexpr int64_t kDefaultSeries = 1000;
constexpr int kPaceSamples = 16;  // that the time to the end is estimated from

absl::StatusOr<const v1::JobRecord*> FindJob(const State& state, const std::string& id) {
  const v1::JobRecord* const job = state.FindJob(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job: there is no '", id, "'"));
  return job;
}

absl::Status CheckNotNegative(const char* field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, "; allowed: 0 and more"));
}

// The job number of a token. Lists are newest first: the page has the jobs below it.
absl::StatusOr<int64_t> Below(const Page& page) {
  if (page.after.empty()) return kMaxCount;
  int64_t number = 0;
  if (!absl::SimpleAtoi(page.after, &number) || number < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page.token: '", page.after, "' is not a token of this list; begin without a token"));
  }
  return number;
}

// Null: none. Recent attempts are in the order of their numbers.
const v1::Attempt* FindAttempt(const v1::JobRecord& job, const LogQuery& query) {
  const v1::Attempt* latest = nullptr;
  const auto matches = [&query](const v1::Attempt& attempt) {
    return query.or_later ? attempt.number() >= query.attempt : attempt.number() == query.attempt;
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) {
    if (query.attempt > 0 && matches(attempt)) return &attempt;
    latest = &attempt;
  }
  if (job.has_attempt()) latest = &job.attempt();
  if (query.attempt == 0) return latest;
  return job.has_attempt() && matches(job.attempt()) ? &job.attempt() : nullptr;
}

}  // namespace

absl::StatusOr<Page> ReadPage(const v1::PageRequest& request, const std::string& list) {
  if (request.size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page.size: ", request.size(), "; allowed: 0 and more"));
  }
  Page page;
  if (request.size() > 0) page.size = std::min(request.size(), kMaxPage);
  if (request.token().empty()) return page;
  if (!absl::StartsWith(request.token(), list + ":")) {
    return absl::InvalidArgumentError(
        absl::StrCat("page.token: '", request.token().substr(0, 80),
                     "' is not a token of this list; begin without a token"));
  }
  page.after = request.token().substr(list.size() + 1);
  return page;
}

std::string PageToken(const std::string& list, const std::string& last) {
  return absl::StrCat(list, ":", last);
}

v1::Job JobNow(const ReadContext& context, const v1::JobRecord& job) {
  return ViewJob(context.state, job, context.live.ProgressOf(job.id()),
                 context.live.PendingOf(job.id()));
}

v1::Worker WorkerNow(const ReadContext& context, const v1::WorkerRecord& worker) {
  v1::Worker view = ViewWorker(context.state, worker);
  const std::optional<int64_t> heard = context.live.LastHeard(worker.identity().name());
  if (heard) view.set_last_heard_ms(std::max<int64_t>(0, context.now_ms - *heard));
  if (context.trash != nullptr) {
    view.set_trash_bytes(context.trash->TrashBytes(worker.identity().name()));
  }
  return view;
}

absl::StatusOr<v1::ListJobsResponse> Answer(const ReadContext& context,
                                            const v1::ListJobsRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "jobs"));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t below, Below(page));
  const std::set<int> states(request.states().begin(), request.states().end());
  const auto& jobs = context.state.index().jobs();
  v1::ListJobsResponse response;
  int64_t last = 0;
  for (auto at = jobs.upper_bound(below); at != jobs.end(); ++at) {
    const v1::JobRecord& job = *context.state.FindJob(at->second);
    if (!context.view.Shows(job) || (!states.empty() && !states.contains(job.state())) ||
        (!request.owner().empty() && job.owner() != request.owner()) ||
        (!request.queue().empty() && job.scheduling().queue() != request.queue()) ||
        (!request.project().empty() && job.scheduling().project() != request.project())) {
      continue;
    }
    if (response.jobs_size() == page.size) {
      response.set_next_token(PageToken("jobs", absl::StrCat(last)));
      break;
    }
    *response.add_jobs() = JobNow(context, job);
    last = job.number();
  }
  return response;
}

absl::StatusOr<v1::DescribeJobResponse> Answer(const ReadContext& context,
                                               const v1::DescribeJobRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, FindJob(context.state, request.job()));
  v1::DescribeJobResponse response;
  *response.mutable_job() = JobNow(context, *job);
  if (request.with_spec()) {
    response.set_spec_yaml(context.state.FindSpec(request.job())->spec_yaml());
  }
  return response;
}

absl::StatusOr<v1::ListJobEventsResponse> Answer(const ReadContext& context,
                                                 const v1::ListJobEventsRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckNotNegative("after_number", request.after_number()));
  NIBBLE_RETURN_IF_ERROR(CheckNotNegative("limit", request.limit()));
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, FindJob(context.state, request.job()));
  v1::ListJobEventsResponse response;
  for (const v1::JobEvent* event : context.state.EventsOf(request.job())) {
    if (event->number() <= request.after_number()) continue;
    if (request.limit() > 0 && response.events_size() == request.limit()) break;
    *response.add_events() = *event;
  }
  response.set_dropped(std::max<int64_t>(0, job->first_event() - 1 - request.after_number()));
  return response;
}

absl::StatusOr<v1::GetJobMetricsResponse> Answer(const ReadContext& context,
                                                 const v1::GetJobMetricsRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckNotNegative("from_step", request.from_step()));
  NIBBLE_RETURN_IF_ERROR(CheckNotNegative("max_samples", request.max_samples()));
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, FindJob(context.state, request.job()));
  v1::GetJobMetricsResponse response;
  if (job->has_attempt()) {
    for (v1::RankPace& rank : context.live.RanksOf(request.job(), job->attempt().number())) {
      *response.add_ranks() = std::move(rank);
    }
  }
  if (auto precision = context.live.PrecisionOf(request.job())) {
    *response.mutable_precision() = *std::move(precision);
  }
  const std::vector<LiveStatus::Sample> all = context.live.SamplesOf(request.job());
  if (all.empty()) return response;
  *response.mutable_latest() = *all.back();
  std::vector<const v1::StepSample*> selected;
  for (const LiveStatus::Sample& sample : all) {
    if (sample->step() >= request.from_step()) selected.push_back(sample.get());
  }
  const size_t limit =
      static_cast<size_t>(request.max_samples() == 0 ? kDefaultSeries : request.max_samples());
  const size_t stride = std::max<size_t>(1, (selected.size() + limit - 1) / limit);
  // From the end, so that the newest sample is included.
  for (size_t i = selected.empty() ? 0 : (selected.size() - 1) % stride; i < selected.size();
       i += stride) {
    *response.add_series() = *selected[i];
  }
  double pace = 0;
  int counted = 0;
  for (auto sample = all.rbegin(); sample != all.rend() && counted < kPaceSamples; ++sample) {
    pace += (*sample)->step_seconds();
    ++counted;
  }
  const int64_t left = job->shape().steps() - all.back()->step() - 1;
  if (job->has_attempt() && left > 0) {
    response.set_eta_seconds(pace / counted * static_cast<double>(left));
  }
  return response;
}

absl::StatusOr<v1::ListCheckpointsResponse> Answer(const ReadContext& context,
                                                   const v1::ListCheckpointsRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "checkpoints"));
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, FindJob(context.state, request.job()));
  std::vector<const v1::Checkpoint*> all = context.state.CheckpointsOf(request.job());
  v1::ListCheckpointsResponse response;
  // With the first page only: clients merge pages.
  if (page.after.empty() && job->has_uploads()) {
    *response.mutable_uploads() = ViewUploads(context.state, *job);
  }
  std::string last;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const std::string key = CheckpointKey((*it)->ref());
    if (!page.after.empty() && key >= page.after) continue;
    if ((*it)->state() == v1::CHECKPOINT_STATE_WRITING && !request.with_uncommitted()) continue;
    if (response.checkpoints_size() == page.size) {
      response.set_next_token(PageToken("checkpoints", last));
      break;
    }
    *response.add_checkpoints() = **it;
    last = key;
  }
  return response;
}

absl::StatusOr<v1::DescribeCheckpointResponse> Answer(
    const ReadContext& context, const v1::DescribeCheckpointRequest& request) {
  const State& state = context.state;
  v1::CheckpointRef ref = request.ref();
  // A checkpoint still being written is identified by its attempt alone.
  if (ref.attempt() <= 0 || state.FindCheckpoint(ref) == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef found, FindCheckpoint(state, ref));
    ref = found;
  }
  v1::DescribeCheckpointResponse response;
  *response.mutable_checkpoint() = *state.FindCheckpoint(ref);
  for (const v1::CheckpointShard* shard : state.ShardsOf(ref)) *response.add_shards() = *shard;
  return response;
}

absl::StatusOr<v1::ListOrphansResponse> Answer(const ReadContext& context,
                                               const v1::ListOrphansRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "orphans"));
  v1::ListOrphansResponse response;
  // Orphans have no project that anybody knows.
  if (context.view.bound()) return response;
  for (const std::string& job : context.orphans->Jobs()) {
    if (job <= page.after || context.state.FindJob(job) != nullptr) continue;
    const OrphanRegistry::Holdings holdings = context.orphans->Of(job);
    v1::OrphanJob described = DescribeOrphan(context.state, job, holdings.evidence());
    // Leftovers of an ended or removed job: nothing to adopt or remove.
    const auto& all = described.holdings();
    if (std::none_of(all.begin(), all.end(), [](const v1::OrphanHolding& holding) {
          return holding.running() || holding.shards() > 0;
        })) {
      continue;
    }
    if (response.orphans_size() == page.size) {
      response.set_next_token(PageToken("orphans", response.orphans().rbegin()->job()));
      break;
    }
    *response.add_orphans() = std::move(described);
  }
  return response;
}

absl::StatusOr<v1::ListWorkersResponse> Answer(const ReadContext& context,
                                               const v1::ListWorkersRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "workers"));
  const auto& workers = context.state.tables().workers;
  v1::ListWorkersResponse response;
  for (auto it = workers.upper_bound(page.after); it != workers.end(); ++it) {
    if (response.workers_size() == page.size) {
      response.set_next_token(PageToken("workers", response.workers().rbegin()->identity().name()));
      break;
    }
    *response.add_workers() = WorkerNow(context, *it->second);
  }
  return response;
}

absl::StatusOr<v1::DescribeWorkerResponse> Answer(const ReadContext& context,
                                                  const v1::DescribeWorkerRequest& request) {
  const v1::WorkerRecord* const worker = context.state.FindWorker(request.worker());
  if (worker == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", request.worker(), "'"));
  }
  v1::DescribeWorkerResponse response;
  *response.mutable_worker() = WorkerNow(context, *worker);
  response.mutable_worker()->set_sole_shards(CountSoleShards(context.state, request.worker()));
  return response;
}

absl::StatusOr<v1::ListQueuesResponse> Answer(const ReadContext& context,
                                              const v1::ListQueuesRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "queues"));
  const auto& queues = context.state.tables().queues;
  v1::ListQueuesResponse response;
  for (auto it = queues.upper_bound(page.after); it != queues.end(); ++it) {
    if (response.queues_size() == page.size) {
      response.set_next_token(PageToken("queues", response.queues().rbegin()->queue().name()));
      break;
    }
    v1::QueueStatus& status = *response.add_queues();
    *status.mutable_queue() = *it->second;
    *status.mutable_usage() = ViewUsage(context.state, it->first);
  }
  return response;
}

absl::StatusOr<LogAttempt> Answer(const ReadContext& context, const LogQuery& query) {
  NIBBLE_RETURN_IF_ERROR(CheckRange("attempt", query.attempt, 0, kMaxCount));
  NIBBLE_RETURN_IF_ERROR(CheckRange("rank", query.rank, -1, kMaxRanks - 1));
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, FindJob(context.state, query.job));
  const v1::Attempt* const attempt = FindAttempt(*job, query);
  if (attempt == nullptr) {
    if (query.attempt == 0) {
      return absl::NotFoundError(absl::StrCat("attempt: ", query.job, " has had none yet"));
    }
    return absl::NotFoundError(
        absl::StrCat("attempt: ", query.job, " has no attempt ", query.attempt,
                     ", or it is no longer kept; the latest is ", job->last_attempt()));
  }
  if (query.rank >= attempt->world()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank: ", query.rank, "; attempt ", attempt->number(), " has 0 to ", attempt->world() - 1));
  }
  LogAttempt found{.number = attempt->number(),
                   .over = !job->has_attempt() || job->attempt().number() != attempt->number(),
                   .job_finished = IsFinished(job->state())};
  for (const v1::Placement& placement : attempt->placements()) {
    const v1::WorkerRecord* const worker = context.state.FindWorker(placement.worker());
    for (int i = 0; i < placement.slots_size(); ++i) {
      const int32_t rank = placement.first_rank() + i;
      if (query.rank >= 0 && rank != query.rank) continue;
      found.sources.push_back({.rank = rank,
                               .worker = placement.worker(),
                               .address = worker == nullptr ? "" : worker->identity().address()});
    }
  }
  return found;
}

}  // namespace nibble

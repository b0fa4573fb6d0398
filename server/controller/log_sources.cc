#include "server/controller/log_sources.h"

#include "absl/strings/str_cat.h"
#include "server/state/bounds.h"
#include "server/state/job_machine.h"

namespace nibble {
namespace {

// Null: there is none. Attempts that are kept are in the order of their numbers.
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

absl::StatusOr<LogAttempt> Answer(const ReadContext& context, const LogQuery& query) {
  absl::Status status = CheckRange("attempt", query.attempt, 0, kMaxCount);
  if (status.ok()) status = CheckRange("rank", query.rank, -1, kMaxRanks - 1);
  if (!status.ok()) return status;
  const v1::JobRecord* const job = context.state.FindJob(query.job);
  if (job == nullptr)
    return absl::NotFoundError(absl::StrCat("job: there is no '", query.job, "'"));
  const v1::Attempt* const attempt = FindAttempt(*job, query);
  if (attempt == nullptr) {
    if (query.attempt == 0) {
      return absl::NotFoundError(absl::StrCat("attempt: ", query.job, " has had none yet"));
    }
    return absl::NotFoundError(absl::StrCat("attempt: of ", query.job, " no ", query.attempt,
                                            " is known; the latest is ", job->last_attempt()));
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

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/apply.h"
#include "server/state/bounds.h"
#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/limits.h"
#include "server/state/notify_events.h"

namespace nibble::apply {
namespace {

// Forgotten with one update at most, so that none takes long.
constexpr int kForgottenAtOnce = 64;

}  // namespace

absl::StatusOr<v1::JobRecord*> EditJob(Draft& draft, const std::string& id) {
  v1::JobRecord* const job = draft.jobs.Edit(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job: there is no '", id, "'"));
  return job;
}

absl::StatusOr<v1::JobRecord*> EditUnfinished(Draft& draft, const std::string& id) {
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, id);
  if (job.ok() && IsFinished((*job)->state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", id, " is finished: ", StateName((*job)->state())));
  }
  return job;
}

absl::Status CheckAttempt(const v1::JobRecord& job, int64_t number) {
  if (number > job.last_attempt() || number < 1) {
    return absl::AbortedError(absl::StrCat("attempt: ", number, " of ", job.id(),
                                           " was never launched; the latest is ",
                                           job.last_attempt()));
  }
  if (job.has_attempt() && number == job.attempt().number()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "attempt: ", number, " of ", job.id(), " is over; ",
      job.has_attempt() ? absl::StrCat("the current one is ", job.attempt().number())
                        : absl::StrCat("none lives, the latest was ", job.last_attempt())));
}

void AddEvent(const EventFacts& facts, const Stamp& stamp, v1::JobRecord& job, Draft& draft) {
  v1::JobEvent& event = draft.events.Put(EventKey(job.id(), job.next_event()));
  event.set_job(job.id());
  event.set_number(job.next_event());
  event.set_sequence(stamp.sequence);
  event.set_time_unix_ms(stamp.time_unix_ms);
  event.set_author(std::string(stamp.author));
  event.set_kind(facts.kind);
  event.set_text(facts.text);
  event.set_from(facts.from);
  event.set_to(facts.to);
  event.set_attempt(facts.attempt);
  event.set_step(facts.step);
  event.set_revision(facts.revision);
  for (v1::NotifyTarget& target : *job.mutable_notify()) {
    if (Wants(target, event)) target.set_wanted_event(event.number());
  }
  job.set_next_event(job.next_event() + 1);
  if (job.next_event() - job.first_event() > kMaxEventsPerJob) {
    draft.events.Erase(EventKey(job.id(), job.first_event()));
    job.set_first_event(job.first_event() + 1);
  }
}

absl::Status Remember(const v1::RequestRecord& request, const Stamp& stamp, Draft& draft) {
  absl::Status status = CheckRequestId(request.request_id());
  if (!status.ok()) return status;
  if (!request.author().empty() || request.time_unix_ms() != 0 || request.sequence() != 0) {
    return absl::InvalidArgumentError("request: author, time and sequence are the update's");
  }
  const std::string key = RequestKey(stamp.author, request.request_id());
  if (draft.requests.Find(key) != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id: '", request.request_id(), "' was carried out before"));
  }
  v1::RequestRecord& record = draft.requests.Put(key);
  record = request;
  record.set_author(std::string(stamp.author));
  record.set_time_unix_ms(stamp.time_unix_ms);
  record.set_sequence(stamp.sequence);
  int64_t count = draft.requests.size();
  int forgotten = 0;
  for (const auto& [sequence, old_key] : draft.before().requests()) {
    if (count <= kMaxRequests || forgotten == kForgottenAtOnce) break;
    draft.requests.Erase(old_key);
    --count;
    ++forgotten;
  }
  return absl::OkStatus();
}

namespace {

// Nobody waits for what will not come: a job without an attempt is where its goal wants it.
bool GoalFits(const v1::JobRecord& job) {
  if (IsFinished(job.state()) || job.has_attempt()) return true;
  switch (job.state()) {
    case v1::JOB_STATE_PAUSED:
      return job.goal() == v1::JOB_GOAL_PAUSE;
    default:
      return job.goal() == v1::JOB_GOAL_RUN;
  }
}

}  // namespace

absl::Status CheckJobs(const Draft& draft) {
  for (const auto& [id, job] : draft.jobs.changes()) {
    if (job == nullptr) continue;
    const NeedsAttempt needs = AttemptIn(job->state());
    if ((needs == NeedsAttempt::kAlways && !job->has_attempt()) ||
        (needs == NeedsAttempt::kNever && job->has_attempt())) {
      return absl::FailedPreconditionError(
          absl::StrCat("job: ", id, " would be ", StateName(job->state()),
                       job->has_attempt() ? " with" : " without", " an attempt that lives"));
    }
    if (!GoalFits(*job)) {
      return absl::FailedPreconditionError(absl::StrCat("job: ", id, " would be ",
                                                        StateName(job->state()),
                                                        " without an attempt, against its goal"));
    }
    if (!IsFinished(job->state()) && draft.queues.Find(job->scheduling().queue()) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("job: ", id, " would be in the queue '",
                                                        job->scheduling().queue(),
                                                        "', which there is not"));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::apply

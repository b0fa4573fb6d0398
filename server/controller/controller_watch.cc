#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/controller.h"
#include "server/state/job_machine.h"

namespace nibble {
namespace {

// The jobs that a watch is of; NotFound for one that there is not.
absl::StatusOr<std::vector<const v1::JobRecord*>> WatchedJobs(const State& state,
                                                              const v1::WatchJobsRequest& request) {
  std::vector<const v1::JobRecord*> jobs;
  if (request.jobs().empty()) {
    for (const auto& [id, job] : state.tables().jobs) jobs.push_back(job.get());
    return jobs;
  }
  for (const std::string& id : request.jobs()) {
    const v1::JobRecord* const job = state.FindJob(id);
    if (job == nullptr) return absl::NotFoundError(absl::StrCat("jobs: there is no '", id, "'"));
    jobs.push_back(job);
  }
  return jobs;
}

// The events of a job after an update; OutOfRange where some are no longer kept.
absl::StatusOr<std::vector<const v1::JobEvent*>> EventsAfter(const State& state,
                                                             const v1::JobRecord& job,
                                                             int64_t sequence) {
  std::vector<const v1::JobEvent*> events = state.EventsOf(job.id());
  if (job.first_event() > 1 && !events.empty() && events.front()->sequence() > sequence + 1) {
    return absl::OutOfRangeError(absl::StrCat("resume_token: events of ", job.id(),
                                              " before number ", job.first_event(),
                                              " are no longer kept; begin without a token"));
  }
  std::erase_if(events, [sequence](const auto* event) { return event->sequence() <= sequence; });
  return events;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Watch>> Controller::OpenWatch(const v1::WatchJobsRequest& request,
                                                             std::function<void()> notify) {
  std::optional<int64_t> from;
  if (!request.resume_token().empty()) {
    const absl::StatusOr<int64_t> parsed = ParseResumeToken(request.resume_token());
    if (!parsed.ok()) return parsed.status();
    from = *parsed;
  }
  // While `shown` is locked nothing is published: the beginning and what follows fit together.
  return ledger_->Read([&](const State& state) -> absl::StatusOr<std::shared_ptr<Watch>> {
    if (from && *from > state.sequence()) {
      return absl::InvalidArgumentError(absl::StrCat("resume_token: '", request.resume_token(),
                                                     "' is not one of ours: the last update is ",
                                                     state.sequence()));
    }
    const auto jobs = WatchedJobs(state, request);
    if (!jobs.ok()) return jobs.status();
    std::vector<const v1::JobEvent*> events;
    std::deque<v1::WatchJobsResponse> beginning;
    const ReadContext context{state, live_, clock_.NowUnixMs()};
    std::vector<const v1::JobRecord*> shown;
    for (const v1::JobRecord* job : *jobs) {
      // Of all jobs there may be a hundred thousand that are over; ListJobs has them, in pages.
      bool show = (!from && !request.jobs().empty()) || !IsFinished(job->state());
      if (from) {
        const auto missed = EventsAfter(state, *job, *from);
        if (!missed.ok()) return missed.status();
        show = show || !missed->empty();
        events.insert(events.end(), missed->begin(), missed->end());
      }
      if (show) shown.push_back(job);
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const auto* a, const auto* b) { return a->sequence() < b->sequence(); });
    for (const v1::JobEvent* event : events) {
      *beginning.emplace_back().mutable_event() = *event;
      beginning.back().set_resume_token(ResumeToken(event->sequence() - 1));
    }
    for (const v1::JobRecord* job : shown) {
      *beginning.emplace_back().mutable_job() = JobNow(context, *job);
      if (from) beginning.back().set_resume_token(request.resume_token());
    }
    beginning.emplace_back().set_caught_up(true);
    beginning.back().set_resume_token(ResumeToken(state.sequence()));
    return hub_.Open(request, std::move(beginning), std::move(notify));
  });
}

int64_t Controller::Wait(const v1::WaitJobRequest& request,
                         std::function<void(absl::Status)> done) {
  std::set<v1::JobState> states;
  for (const int state : request.states()) states.insert(static_cast<v1::JobState>(state));
  std::optional<absl::Status> over;
  int64_t number = 0;
  ledger_->Read([&](const State& state) {
    const v1::JobRecord* const job = state.FindJob(request.job());
    if (job == nullptr) {
      over = absl::NotFoundError(absl::StrCat("job: there is no '", request.job(), "'"));
      return;
    }
    over = WaitOver(request.job(), states, job->state());
    if (over) return;
    const absl::StatusOr<int64_t> waiting = hub_.Wait(request.job(), states, done);
    if (waiting.ok()) {
      number = *waiting;
    } else {
      over = waiting.status();
    }
  });
  if (over) done(*over);
  return number;
}

}  // namespace nibble

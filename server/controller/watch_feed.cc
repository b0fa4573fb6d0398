#include "server/controller/watch_feed.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/reads.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

// Whether the reader has the event.
bool Has(const ResumePlace& place, const v1::JobEvent& event) {
  if (event.sequence() != place.sequence + 1) return event.sequence() <= place.sequence;
  return EventKey(event.job(), event.number()) <= place.event;
}

// The job's newest event, or null.
const v1::JobEvent* NewestEvent(const State& state, const v1::JobRecord& job) {
  return FindIn(state.tables().events, EventKey(job.id(), job.next_event() - 1));
}

// The events of a job that the reader lacks; OutOfRange if some are no longer kept.
absl::StatusOr<std::vector<const v1::JobEvent*>> EventsAfter(const State& state,
                                                             const v1::JobRecord& job,
                                                             const ResumePlace& place) {
  // Fast path: most jobs have no recent events.
  const v1::JobEvent* const newest = NewestEvent(state, job);
  std::vector<const v1::JobEvent*> events;
  if (newest == nullptr || newest->sequence() <= place.sequence) return events;
  events = state.EventsOf(job.id());
  if (job.first_event() > 1 && !events.empty() && events.front()->sequence() > place.sequence + 1) {
    return absl::OutOfRangeError(absl::StrCat("resume_token: events of ", job.id(),
                                              " before number ", job.first_event(),
                                              " are no longer kept; begin without a token"));
  }
  std::erase_if(events, [&place](const auto* event) { return Has(place, *event); });
  return events;
}

// The beginning of a watch: the missed events, each finished job after the last of its own, the
// other jobs, then `caught_up`.
class Beginning {
 public:
  // `from`: of the resume token.
  Beginning(std::shared_ptr<const State> state, const LiveStatus& live, const Clock& clock,
            const v1::WatchJobsRequest& request, std::optional<ResumePlace> from)
      : state_(std::move(state)),
        live_(live),
        clock_(clock),
        request_(request),
        from_(std::move(from)),
        mark_(StoreMark(state_->store())),
        token_(request.resume_token()) {
    if (request_.jobs().empty()) unfinished_ = state_->index().unfinished().begin();
  }

  absl::StatusOr<v1::WatchJobsResponse> Next() {
    if (from_ && !std::exchange(looked_, true)) {
      NIBBLE_RETURN_IF_ERROR(FindMissed());
    }
    v1::WatchJobsResponse message;
    const v1::JobRecord* job = nullptr;
    if (next_ < missed_.size()) {
      const Missed& missed = missed_[next_++];
      job = missed.ended;
      if (missed.event != nullptr) {
        *message.mutable_event() = *missed.event;
        token_ = ResumeToken(mark_, missed.sequence - 1, missed.key);
      }
    } else {
      job = NextJob();
    }
    if (job != nullptr) {
      *message.mutable_job() = JobNow({*state_, live_, clock_.SteadyMs()}, *job);
    } else if (!message.has_event()) {
      message.set_caught_up(true);
      token_ = ResumeToken(mark_, state_->sequence());
    }
    message.set_resume_token(token_);
    return message;
  }

 private:
  // An event, or a job that finished after the token.
  struct Missed {
    int64_t sequence = 0;
    std::string key;  // of the event; empty: none
    const v1::JobEvent* event = nullptr;
    const v1::JobRecord* ended = nullptr;
  };

  absl::Status Miss(const v1::JobRecord& job) {
    NIBBLE_ASSIGN_OR_RETURN(const auto events, EventsAfter(*state_, job, *from_));
    for (const v1::JobEvent* event : events) {
      missed_.push_back({event->sequence(), EventKey(job.id(), event->number()), event, nullptr});
    }
    // With its newest event the reader may not have got the job itself.
    const v1::JobEvent* const newest = NewestEvent(*state_, job);
    if (IsFinished(job.state()) && newest != nullptr && newest->sequence() > from_->sequence) {
      missed_.push_back({newest->sequence(), "", nullptr, &job});
    }
    return absl::OkStatus();
  }
  absl::Status FindMissed() {
    absl::Status status;
    if (request_.jobs().empty()) {
      for (const auto& [id, job] : state_->tables().jobs) {
        if (status.ok()) status = Miss(*job);
      }
      // The reader may not see the job that it would name.
      if (absl::IsOutOfRange(status)) {
        status = absl::OutOfRangeError(
            "resume_token: events after it are no longer kept; begin without a token");
      }
    }
    for (const std::string& id : request_.jobs()) {
      const v1::JobRecord* const job = state_->FindJob(id);
      if (status.ok() && job != nullptr) status = Miss(*job);
    }
    // As they were published.
    std::stable_sort(missed_.begin(), missed_.end(), [](const Missed& a, const Missed& b) {
      return std::tuple(a.sequence, a.event == nullptr, std::string_view(a.key)) <
             std::tuple(b.sequence, b.event == nullptr, std::string_view(b.key));
    });
    return status;
  }
  // A watch of all jobs leaves out finished ones, since there may be very many; ListJobs has
  // them.
  const v1::JobRecord* NextJob() {
    while (named_ < request_.jobs_size()) {
      const v1::JobRecord* const job = state_->FindJob(request_.jobs(named_++));
      if (job != nullptr && (!from_ || !IsFinished(job->state()))) return job;
    }
    if (unfinished_ == state_->index().unfinished().end()) return nullptr;
    return state_->FindJob((unfinished_++)->second);
  }

  const std::shared_ptr<const State> state_;
  const LiveStatus& live_;
  const Clock& clock_;
  const v1::WatchJobsRequest request_;
  const std::optional<ResumePlace> from_;
  const std::string mark_;
  std::string token_;  // after what was sent so far
  bool looked_ = false;
  std::vector<Missed> missed_;  // in the order of the journal
  // Positions in these lists.
  size_t next_ = 0;
  int named_ = 0;
  PersistentMap<int64_t, std::string>::const_iterator unfinished_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Watch>> WatchFeed::Open(const v1::WatchJobsRequest& request,
                                                       std::function<void()> notify) {
  std::optional<ResumePlace> from;
  const std::shared_ptr<const State> now = context_.ledger.Shown();
  if (!request.resume_token().empty()) {
    NIBBLE_ASSIGN_OR_RETURN(ResumePlace parsed, ParseResumeToken(request.resume_token()));
    // The updates of another store, or of this one before a restore, are unknown here.
    if (parsed.store != StoreMark(now->store()) || parsed.sequence > now->sequence()) {
      return absl::OutOfRangeError(absl::StrCat(
          "resume_token: '", request.resume_token(),
          "' is of another store, or of this one before it was restored; begin without a token"));
    }
    from = std::move(parsed);
  }
  for (const std::string& id : request.jobs()) {
    if (now->FindJob(id) == nullptr) {
      return absl::NotFoundError(absl::StrCat("jobs: there is no '", id, "'"));
    }
  }
  return hub_.Open(
      request,
      [this, request, from] {
        const std::shared_ptr<const State> state = context_.ledger.Shown();
        const auto beginning =
            std::make_shared<Beginning>(state, context_.live, context_.clock, request, from);
        return WatchBeginning{state->sequence(), [beginning] { return beginning->Next(); }};
      },
      std::move(notify));
}

int64_t WatchFeed::Wait(const v1::WaitJobRequest& request, std::function<void(absl::Status)> done) {
  std::set<v1::JobState> states;
  for (const int state : request.states()) states.insert(static_cast<v1::JobState>(state));
  // Waits before it looks at the state, so that no change in between is missed.
  const absl::StatusOr<int64_t> waiting = hub_.Wait(request.job(), states, done);
  if (!waiting.ok()) {
    done(waiting.status());
    return 0;
  }
  const std::shared_ptr<const State> shown = context_.ledger.Shown();
  const v1::JobRecord* const job = shown->FindJob(request.job());
  const std::optional<absl::Status> over =
      job == nullptr ? absl::NotFoundError(absl::StrCat("job: there is no '", request.job(), "'"))
                     : WaitOver(request.job(), states, job->state());
  if (!over) return *waiting;
  if (hub_.EndWait(*waiting)) done(*over);
  return 0;
}

void WatchFeed::Begin(const State& state) {
  hub_.SetStore(state.store());
  hub_.Publish(state.sequence(), {});
}

void WatchFeed::Publish(const State& after, std::vector<std::string> events,
                        const std::set<std::string>& jobs) {
  std::sort(events.begin(), events.end());
  std::vector<WatchLog::Entry> entries;
  for (const std::string& key : events) {
    const v1::JobEvent* const event = FindIn(after.tables().events, key);
    if (event == nullptr || !hub_.IsWatched(event->job())) continue;
    entries.emplace_back().job = event->job();
    *entries.back().message.mutable_event() = *event;
  }
  const ReadContext now = {after, context_.live, context_.clock.SteadyMs()};
  for (const std::string& id : jobs) {
    const v1::JobRecord* const job = after.FindJob(id);
    if (job == nullptr || !hub_.IsWatched(id)) continue;
    entries.emplace_back().job = id;
    *entries.back().message.mutable_job() = JobNow(now, *job);
  }
  hub_.Publish(after.sequence(), std::move(entries));
  for (const std::string& id : jobs) {
    const v1::JobRecord* const job = after.FindJob(id);
    if (job != nullptr) hub_.EndWaits(id, job->state());
  }
}

void WatchFeed::PublishSamples(const std::string& job, const std::vector<v1::StepSample>& samples) {
  if (samples.empty() || !hub_.IsWatched(job)) return;
  std::vector<WatchLog::Entry> entries;
  for (const v1::StepSample& sample : samples) {
    entries.emplace_back().job = job;
    v1::JobSample& message = *entries.back().message.mutable_sample();
    message.set_job(job);
    *message.mutable_sample() = sample;
  }
  hub_.PublishSamples(std::move(entries));
}

}  // namespace nibble

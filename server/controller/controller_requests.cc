// Requests of clients: changes and their answers, watches, waits.
#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/controller.h"
#include "server/state/decide.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

template <class Request>
bool IsDryRun(const Request& request) {
  if constexpr (requires { request.dry_run(); }) {
    return request.dry_run();
  } else {
    return false;
  }
}

template <class Request>
std::string JobOf(const Request& request) {
  if constexpr (requires { std::string(request.job()); }) {
    return request.job();
  } else {
    return "";
  }
}

template <class Response>
constexpr bool kChangesRecipe = std::is_same_v<Response, v1::SetRecipeResponse> ||
                                std::is_same_v<Response, v1::RollbackRecipeResponse>;

void Run(const std::vector<SwitchAnswers::Answer>& answers) {
  for (const SwitchAnswers::Answer& answer : answers) answer();
}

// The events of a job after an update; OutOfRange if some are no longer kept.
absl::StatusOr<std::vector<const v1::JobEvent*>> EventsAfter(const State& state,
                                                             const v1::JobRecord& job,
                                                             int64_t sequence) {
  // Fast path: most jobs have no recent events.
  const v1::JobEvent* const newest =
      FindIn(state.tables().events, EventKey(job.id(), job.next_event() - 1));
  std::vector<const v1::JobEvent*> events;
  if (newest == nullptr || newest->sequence() <= sequence) return events;
  events = state.EventsOf(job.id());
  if (job.first_event() > 1 && !events.empty() && events.front()->sequence() > sequence + 1) {
    return absl::OutOfRangeError(absl::StrCat("resume_token: events of ", job.id(),
                                              " before number ", job.first_event(),
                                              " are no longer kept; begin without a token"));
  }
  std::erase_if(events, [sequence](const auto* event) { return event->sequence() <= sequence; });
  return events;
}

// The beginning of a watch: the missed events, the jobs, then `caught_up`.
class Beginning {
 public:
  // `from`: of the resume token.
  Beginning(std::shared_ptr<const State> state, const LiveFacts& live, const Clock& clock,
            const v1::WatchJobsRequest& request, std::optional<int64_t> from)
      : state_(std::move(state)),
        live_(live),
        clock_(clock),
        request_(request),
        from_(from),
        mark_(StoreMark(state_->store())) {
    if (request_.jobs().empty()) unfinished_ = state_->index().unfinished().begin();
  }

  absl::StatusOr<v1::WatchJobsResponse> Next() {
    if (from_ && !std::exchange(looked_, true)) {
      NIBBLE_RETURN_IF_ERROR(FindMissed());
    }
    v1::WatchJobsResponse message;
    if (event_ < missed_.size()) {
      const v1::JobEvent& event = *missed_[event_++];
      *message.mutable_event() = event;
      message.set_resume_token(ResumeToken(mark_, event.sequence() - 1));
    } else if (const v1::JobRecord* const job = NextJob()) {
      *message.mutable_job() = JobNow({*state_, live_, clock_.SteadyMs()}, *job);
      if (from_) message.set_resume_token(request_.resume_token());
    } else {
      message.set_caught_up(true);
      message.set_resume_token(ResumeToken(mark_, state_->sequence()));
    }
    return message;
  }

 private:
  absl::Status Miss(const v1::JobRecord& job) {
    NIBBLE_ASSIGN_OR_RETURN(const auto missed, EventsAfter(*state_, job, *from_));
    missed_.insert(missed_.end(), missed.begin(), missed.end());
    if (!missed.empty() && IsFinished(job.state())) ended_.push_back(&job);
    return absl::OkStatus();
  }
  absl::Status FindMissed() {
    absl::Status status;
    if (request_.jobs().empty()) {
      for (const auto& [id, job] : state_->tables().jobs) {
        if (status.ok()) status = Miss(*job);
      }
    }
    for (const std::string& id : request_.jobs()) {
      const v1::JobRecord* const job = state_->FindJob(id);
      if (status.ok() && job != nullptr) status = Miss(*job);
    }
    std::stable_sort(missed_.begin(), missed_.end(),
                     [](const auto* a, const auto* b) { return a->sequence() < b->sequence(); });
    return status;
  }
  // A watch of all jobs leaves out finished ones, of which there may be very many; ListJobs has
  // them.
  const v1::JobRecord* NextJob() {
    while (named_ < request_.jobs_size()) {
      const v1::JobRecord* const job = state_->FindJob(request_.jobs(named_++));
      if (job != nullptr && (!from_ || !IsFinished(job->state()))) return job;
    }
    if (unfinished_ != state_->index().unfinished().end()) {
      return state_->FindJob((unfinished_++)->second);
    }
    return end_ < ended_.size() ? ended_[end_++] : nullptr;
  }

  const std::shared_ptr<const State> state_;
  const LiveFacts& live_;
  const Clock& clock_;
  const v1::WatchJobsRequest request_;
  const std::optional<int64_t> from_;
  const std::string mark_;
  bool looked_ = false;
  std::vector<const v1::JobEvent*> missed_;  // by update
  std::vector<const v1::JobRecord*> ended_;  // finished after the token
  // Positions in these lists.
  size_t event_ = 0;
  int named_ = 0;
  PersistentMap<int64_t, std::string>::const_iterator unfinished_;
  size_t end_ = 0;
};

}  // namespace

// Fills in the jobs, checkpoints and workers that a decision's answer names.
template <class Response>
void Controller::Complete(bool dry_run, Response& response) const {
  if (dry_run) return;
  ledger_->Read([&](const State& state) {
    const ReadContext context{state, live_, clock_.SteadyMs()};
    if constexpr (requires { response.mutable_job()->set_owner(""); }) {
      const v1::JobRecord* const job = state.FindJob(response.job().id());
      if (job != nullptr) *response.mutable_job() = JobNow(context, *job);
    } else if constexpr (requires { response.mutable_checkpoint()->pins(); }) {
      const v1::Checkpoint* const found = state.FindCheckpoint(response.checkpoint().ref());
      if (found != nullptr) *response.mutable_checkpoint() = *found;
    } else if constexpr (requires { response.mutable_worker()->flags(); }) {
      const v1::WorkerRecord* const worker = state.FindWorker(response.worker().identity().name());
      if (worker != nullptr) *response.mutable_worker() = WorkerNow(context, *worker);
    }
  });
}

template <class Response>
void Controller::AnswerWhenSwitched(const std::string& job, std::shared_ptr<Response> response,
                                    Done<Response> done) {
  const int64_t revision = response->revision();
  const auto answer = [this, job, response,
                       done = std::make_shared<Done<Response>>(std::move(done))] {
    const absl::StatusOr<int64_t> step = ledger_->Read([&](const State& state) {
      return SwitchStep(state, job, response->revision(), live_.ProgressOf(job),
                        response->first_step());
    });
    if (!step.ok()) {
      std::move (*done)(step.status());
      return;
    }
    response->set_first_step(*step);
    std::move (*done)(std::move(*response));
  };
  const bool near = ledger_->Read([&](const State& state) {
    return SwitchIsNear(state, job, revision, live_.ProgressOf(job), live_.StepSecondsOf(job),
                        options_.switch_wait_ms);
  });
  const int64_t until_ms = clock_.SteadyMs() + options_.switch_wait_ms;
  if (options_.switch_wait_ms == 0 || !near || !switches_.Add(job, revision, until_ms, answer)) {
    answer();
    return;
  }
  // Ranks may have switched before the answer was added.
  Run(ledger_->Read([&](const State& state) { return switches_.TakeSettled(state, job); }));
}

void Controller::StopWaiting() { Run(switches_.Close()); }

template <class Response, class Request>
void Controller::Change(const Request& request, const std::string& author, Done<Response> done) {
  const std::set<std::string> taken = orphans_.Jobs();
  const Caller caller{author, clock_.NowUnixMs(), &taken,
                      options_.may_post ? &options_.may_post : nullptr};
  auto response = std::make_shared<Response>();
  ledger_->Change(
      [&](const State& state) -> MaybeUpdate {
        NIBBLE_ASSIGN_OR_RETURN(auto decision, [&] {
          if constexpr (requires { Decide(state, request, caller, LiveProgress{}); }) {
            return Decide(state, request, caller, live_.ProgressOf(request.job()));
          } else if constexpr (requires { Decide(state, request, caller, Evidence()); }) {
            return Decide(state, request, caller, orphans_.Of(request.job()).evidence());
          } else if constexpr (requires { Decide(state, request, caller, Evidence(), 0); }) {
            return Decide(state, request, caller, orphans_.Of(request.job()).evidence(),
                          options_.orphan_grace_ms);
          } else {
            return Decide(state, request, caller);
          }
        }());
        *response = std::move(decision.response);
        return std::move(decision.update);
      },
      [this, response, job = JobOf(request), dry_run = IsDryRun(request),
       done = std::move(done)](const absl::Status& status) mutable {
        if (!status.ok()) {
          std::move(done)(status);
          return;
        }
        if constexpr (kChangesRecipe<Response>) {
          if (!dry_run) return AnswerWhenSwitched(job, std::move(response), std::move(done));
        }
        Complete(dry_run, *response);
        std::move(done)(std::move(*response));
      });
}

template <class Response, class Request>
absl::StatusOr<Response> Controller::ChangeAndWait(const Request& request,
                                                   const std::string& author) {
  auto answer = std::make_shared<std::promise<absl::StatusOr<Response>>>();
  auto answered = answer->get_future();
  Change<Response>(request, author, [answer](absl::StatusOr<Response> response) {
    answer->set_value(std::move(response));
  });
  return answered.get();
}

void Controller::RecordPosts(const std::vector<v1::PostsSettled>& settled,
                             std::function<void(const absl::Status&)> done) {
  ledger_->Change(
      [&](const State& state) { return DecideSettled(state, settled, CoordinatorNow()); },
      std::move(done));
}

#define NIBBLE_CHANGE(Verb)                                                                       \
  template void Controller::Change(const v1::Verb##Request&, const std::string&,                  \
                                   Done<v1::Verb##Response>);                                     \
  template absl::StatusOr<v1::Verb##Response> Controller::ChangeAndWait(const v1::Verb##Request&, \
                                                                        const std::string&)
NIBBLE_CHANGE(SubmitJob);
NIBBLE_CHANGE(ForkJob);
NIBBLE_CHANGE(PauseJob);
NIBBLE_CHANGE(ResumeJob);
NIBBLE_CHANGE(CancelJob);
NIBBLE_CHANGE(KillJob);
NIBBLE_CHANGE(CheckpointJob);
NIBBLE_CHANGE(SetJobPriority);
NIBBLE_CHANGE(SetJobRestartPolicy);
NIBBLE_CHANGE(SetRecipe);
NIBBLE_CHANGE(RollbackRecipe);
NIBBLE_CHANGE(VerifyCheckpoint);
NIBBLE_CHANGE(ExportCheckpoint);
NIBBLE_CHANGE(PinCheckpoint);
NIBBLE_CHANGE(UnpinCheckpoint);
NIBBLE_CHANGE(DeleteCheckpoint);
NIBBLE_CHANGE(AdoptJob);
NIBBLE_CHANGE(RemoveOrphan);
NIBBLE_CHANGE(DrainWorker);
NIBBLE_CHANGE(UncordonWorker);
NIBBLE_CHANGE(SetQueue);
NIBBLE_CHANGE(DeleteQueue);
#undef NIBBLE_CHANGE

absl::StatusOr<std::shared_ptr<Watch>> Controller::OpenWatch(const v1::WatchJobsRequest& request,
                                                             std::function<void()> notify) {
  std::optional<int64_t> from;
  const std::shared_ptr<const State> now = ledger_->Shown();
  if (!request.resume_token().empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const ResumePlace parsed, ParseResumeToken(request.resume_token()));
    // The updates of another store, or of this one before a restore, are unknown here.
    if (parsed.store != StoreMark(now->store()) || parsed.sequence > now->sequence()) {
      return absl::OutOfRangeError(absl::StrCat(
          "resume_token: '", request.resume_token(),
          "' is of another store, or of this one before it was restored; begin without a token"));
    }
    from = parsed.sequence;
  }
  for (const std::string& id : request.jobs()) {
    if (now->FindJob(id) == nullptr) {
      return absl::NotFoundError(absl::StrCat("jobs: there is no '", id, "'"));
    }
  }
  return hub_.Open(
      request,
      [this, request, from] {
        const std::shared_ptr<const State> state = ledger_->Shown();
        const auto beginning = std::make_shared<Beginning>(state, live_, clock_, request, from);
        return WatchBeginning{state->sequence(), [beginning] { return beginning->Next(); }};
      },
      std::move(notify));
}

int64_t Controller::Wait(const v1::WaitJobRequest& request,
                         std::function<void(absl::Status)> done) {
  std::set<v1::JobState> states;
  for (const int state : request.states()) states.insert(static_cast<v1::JobState>(state));
  // Waits before it looks at the state, so that no change in between is missed.
  const absl::StatusOr<int64_t> waiting = hub_.Wait(request.job(), states, done);
  if (!waiting.ok()) {
    done(waiting.status());
    return 0;
  }
  const std::shared_ptr<const State> shown = ledger_->Shown();
  const v1::JobRecord* const job = shown->FindJob(request.job());
  const std::optional<absl::Status> over =
      job == nullptr ? absl::NotFoundError(absl::StrCat("job: there is no '", request.job(), "'"))
                     : WaitOver(request.job(), states, job->state());
  if (!over) return *waiting;
  if (hub_.EndWait(*waiting)) done(*over);
  return 0;
}

}  // namespace nibble

#include "server/controller/client_requests.h"

#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "common/status_macros.h"
#include "server/controller/reads.h"
#include "server/state/decide.h"

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

}  // namespace

// Fills in the jobs, checkpoints and workers that a decision's answer names.
template <class Response>
void ClientRequests::Complete(bool dry_run, Response& response) const {
  if (dry_run) return;
  context_.ledger.Read([&](const State& state) {
    const ReadContext context{state, context_.live, context_.clock.SteadyMs()};
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
void ClientRequests::AnswerWhenSwitched(const std::string& job, std::shared_ptr<Response> response,
                                        Done<Response> done) {
  const int64_t revision = response->revision();
  const auto answer = [this, job, response,
                       done = std::make_shared<Done<Response>>(std::move(done))] {
    const absl::StatusOr<int64_t> step = context_.ledger.Read([&](const State& state) {
      return SwitchStep(state, job, response->revision(), context_.live.ProgressOf(job),
                        response->first_step());
    });
    if (!step.ok()) {
      std::move (*done)(step.status());
      return;
    }
    response->set_first_step(*step);
    std::move (*done)(std::move(*response));
  };
  const bool near = context_.ledger.Read([&](const State& state) {
    return SwitchIsNear(state, job, revision, context_.live.ProgressOf(job),
                        context_.live.StepSecondsOf(job), context_.options.switch_wait_ms);
  });
  const int64_t until_ms = context_.clock.SteadyMs() + context_.options.switch_wait_ms;
  if (context_.options.switch_wait_ms == 0 || !near ||
      !switches_.Add(job, revision, until_ms, answer)) {
    answer();
    return;
  }
  // Ranks may have switched before the answer was added.
  AnswerSettled(*context_.ledger.Shown(), job);
}

void ClientRequests::AnswerSettled(const State& state, const std::string& job) {
  Run(switches_.TakeSettled(state, job));
}

void ClientRequests::AnswerDue(int64_t now_ms) { Run(switches_.TakeDue(now_ms)); }

void ClientRequests::StopWaiting() { Run(switches_.Close()); }

template <class Response, class Request>
void ClientRequests::Change(const Request& request, const std::string& author,
                            Done<Response> done) {
  const std::set<std::string> taken_jobs = context_.orphans.Jobs();
  const Caller caller{author, context_.clock.NowUnixMs(), &taken_jobs,
                      context_.options.may_post ? &context_.options.may_post : nullptr};
  auto response = std::make_shared<Response>();
  context_.ledger.Change(
      [&](const State& state) -> MaybeUpdate {
        NIBBLE_ASSIGN_OR_RETURN(auto decision, [&] {
          if constexpr (requires { Decide(state, request, caller, LiveProgress{}); }) {
            return Decide(state, request, caller, context_.live.ProgressOf(request.job()));
          } else if constexpr (requires { Decide(state, request, caller, Evidence()); }) {
            return Decide(state, request, caller, context_.orphans.Of(request.job()).evidence());
          } else if constexpr (requires { Decide(state, request, caller, Evidence(), 0); }) {
            return Decide(state, request, caller, context_.orphans.Of(request.job()).evidence(),
                          context_.options.orphan_grace_ms);
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

void ClientRequests::RecordPosts(const std::vector<v1::PostsSettled>& settled,
                                 std::function<void(const absl::Status&)> done) {
  context_.ledger.Change(
      [&](const State& state) { return DecideSettled(state, settled, context_.coordinator()); },
      std::move(done));
}

#define NIBBLE_CHANGE(Verb)                                                          \
  template void ClientRequests::Change(const v1::Verb##Request&, const std::string&, \
                                       Done<v1::Verb##Response>)
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

}  // namespace nibble

// Shared by the decisions: building updates, and carrying out each request once. Defined in
// decide_requests.cc; AddFailure in decide_failure.cc, AddStop in decide_attempt.cc, those of new
// jobs in decide_submit.cc.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DECIDE_TOOLS_H_
#define NIBBLE_SERVER_STATE_DECIDE_TOOLS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "google/protobuf/message.h"
#include "job/job_spec.h"
#include "server/state/decide.h"
#include "server/state/limits.h"

namespace nibble::decide {

// The author of updates that a guard of the spec causes.
inline constexpr char kGuardAuthor[] = "guard";

// The next update, without facts.
v1::Update NextUpdate(const State& state, const Caller& caller);

// NotFound; FailedPrecondition if it is finished.
absl::StatusOr<const v1::JobRecord*> FindUnfinished(const State& state, const std::string& id);

void Move(const std::string& job, v1::JobState from, v1::JobState to, std::string reason,
          v1::Update& update);
void End(const v1::JobRecord& job, v1::AttemptOutcome outcome, std::string reason,
         v1::Update& update);

// Validates the update; unset if it has no facts.
MaybeUpdate Checked(const State& state, v1::Update update);

struct Failure {
  v1::AttemptOutcome outcome = v1::ATTEMPT_OUTCOME_FAILED;
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
  std::string worker;  // of the failed ranks; may be empty
  std::string reason;
  v1::GuardDecision decision = {};  // of a guard that rolls back
};
// Adds the consequences of a failed attempt, by its cause: another attempt after a back-off, the
// end of the job, a pause. Only a machine's fault counts against the worker.
void AddFailure(const State& state, const v1::JobRecord& job, const Failure& failure,
                v1::Update& update);

// Where a job runs again after a guard's rollback, and why.
struct Rollback {
  int64_t step = 0;                 // checkpoints after it are abandoned
  v1::GuardDecision decision = {};  // of the guard
  std::string author;
  int64_t time_unix_ms = 0;
  std::string reason;
};
// The change after which the job runs again: the layers that the guard found, or else those that
// the spec names, in BF16 from `step` on, with those of earlier rollbacks to later steps; and, if
// the guard watches loss, norm or non-finite values, a lower learning rate. Without revisions if
// nothing changes. Errors as CheckTimeline; ResourceExhausted if the timeline has no room.
absl::StatusOr<v1::RecipeRevised> SaferRecipe(const State& state, const v1::JobRecord& job,
                                              const Rollback& rollback);

// Of submitted and forked jobs. The scheduling with every field set; InvalidArgument if a world
// size does not divide a step's sequences evenly.
absl::StatusOr<v1::JobScheduling> CompleteScheduling(v1::JobScheduling scheduling,
                                                     const JobSpec& spec);
// The project of a new job: the wanted one, or the caller's if it has one alone.
absl::Status SetProject(const Caller& caller, v1::JobScheduling& scheduling);
// Adds the fact, with the id and name of the job.
v1::JobSubmitted& AddSubmission(const State& state, const std::string& name, const Caller& caller,
                                v1::Update& update);
// FailedPrecondition names a URL that may not be posted to.
absl::Status AddTargets(const JobSpec& spec, const Caller& caller, v1::JobSubmitted& submitted);
// Describes the job in the answer itself: a dry run makes no entity to view.
void DescribeSubmitted(const v1::JobSubmitted& submitted, const Caller& caller, v1::Job& job);

// Adds the consequences of an attempt that stopped as requested.
void AddStop(const v1::JobRecord& job, const std::string& reason, v1::Update& update);

// Whether this request was carried out before; then fills in the first answer.
absl::StatusOr<bool> FindAnswer(const State& state, const google::protobuf::Message& request,
                                const std::string& request_id, const Caller& caller,
                                google::protobuf::Message& response);
void KeepAnswer(const google::protobuf::Message& request, const std::string& request_id,
                const google::protobuf::Message& response, v1::Update& update);

// Carries out a request once. body(update, response) → Status adds the facts and fills in the
// answer; it is not called for a request that was carried out before.
template <class Response, class Request, class Body>
absl::StatusOr<Decision<Response>> Once(const State& state, const Request& request,
                                        const Caller& caller, Body body) {
  bool dry_run = false;
  if constexpr (requires { request.dry_run(); }) dry_run = request.dry_run();
  NIBBLE_RETURN_IF_ERROR(CheckBounds(request));
  Decision<Response> decision;
  if (!dry_run || !request.request_id().empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const bool repeated, FindAnswer(state, request, request.request_id(),
                                                            caller, decision.response));
    if (repeated) {
      decision.repeated = true;
      return decision;
    }
  }
  v1::Update update = NextUpdate(state, caller);
  NIBBLE_RETURN_IF_ERROR(body(update, decision.response));
  if (!dry_run) KeepAnswer(request, request.request_id(), decision.response, update);
  NIBBLE_RETURN_IF_ERROR(state.Validate(update));
  if (!dry_run) decision.update = std::move(update);
  return decision;
}

}  // namespace nibble::decide

#endif  // NIBBLE_SERVER_STATE_DECIDE_TOOLS_H_

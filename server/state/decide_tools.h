// What the decisions have in common: making updates, and answering a request once.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DECIDE_TOOLS_H_
#define NIBBLE_SERVER_STATE_DECIDE_TOOLS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/state/bounds.h"
#include "server/state/decide.h"
#include "server/state/decide_gang.h"

namespace nibble::decide {

// The next update, without facts.
v1::Update NextUpdate(const State& state, const Caller& caller);

// Null: NotFound; FailedPrecondition where it is finished.
absl::StatusOr<const v1::JobRecord*> FindUnfinished(const State& state, const std::string& id);

void Move(const std::string& job, v1::JobState from, v1::JobState to, std::string reason,
          v1::Update& update);
void End(const v1::JobRecord& job, v1::AttemptOutcome outcome, std::string reason,
         v1::Update& update);

// Validated; unset where it has no facts.
MaybeUpdate Checked(const State& state, v1::Update update);

struct Failure {
  v1::AttemptOutcome outcome = v1::ATTEMPT_OUTCOME_FAILED;
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
  std::string worker;  // whose ranks failed; empty: nobody's
  std::string reason;
};
// What an attempt that failed means for its job, by its cause: another attempt and its back-off,
// the end, a pause. Only a machine's fault counts against the worker.
void AddFailure(const State& state, const v1::JobRecord& job, const Failure& failure,
                v1::Update& update);

// What an attempt that stopped as told means for its job.
void AddStop(const v1::JobRecord& job, const std::string& reason, v1::Update& update);

// The first answer, where this request was carried out before.
absl::StatusOr<bool> FindAnswer(const State& state, const google::protobuf::Message& request,
                                const std::string& request_id, const Caller& caller,
                                google::protobuf::Message& response);
void KeepAnswer(const google::protobuf::Message& request, const std::string& request_id,
                const google::protobuf::Message& response, v1::Update& update);

// body(update, response) → Status adds facts and fills the answer. It is not asked where there is
// an answer already.
template <class Response, class Request, class Body>
absl::StatusOr<Decision<Response>> Once(const State& state, const Request& request,
                                        const Caller& caller, Body body) {
  bool dry_run = false;
  if constexpr (requires { request.dry_run(); }) dry_run = request.dry_run();
  absl::Status status = CheckBounds(request);
  if (!status.ok()) return status;
  Decision<Response> decision;
  if (!dry_run || !request.request_id().empty()) {
    const absl::StatusOr<bool> repeated =
        FindAnswer(state, request, request.request_id(), caller, decision.response);
    if (!repeated.ok()) return repeated.status();
    if (*repeated) {
      decision.repeated = true;
      return decision;
    }
  }
  v1::Update update = NextUpdate(state, caller);
  status = body(update, decision.response);
  if (!status.ok()) return status;
  if (!dry_run) KeepAnswer(request, request.request_id(), decision.response, update);
  status = state.Validate(update);
  if (!status.ok()) return status;
  if (!dry_run) decision.update = std::move(update);
  return decision;
}

}  // namespace nibble::decide

#endif  // NIBBLE_SERVER_STATE_DECIDE_TOOLS_H_

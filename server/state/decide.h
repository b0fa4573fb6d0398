// Requests of people and programs become updates: pure functions of the state, the request and who
// asks when. They read and check; nothing is changed until State::Apply of what they return.
//
// A request id that was carried out before gets the first answer and no update. Answers hold what
// the decision made (ids, revisions, numbers); of a job, checkpoint or worker they hold its name
// alone, and the caller adds what it is (server/state/views.h) once the update is applied.
//
// Every function has the statuses of State::Validate, and AlreadyExists for a request id that was
// used for another request. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DECIDE_H_
#define NIBBLE_SERVER_STATE_DECIDE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/update.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "server/state/state.h"

namespace nibble {

// Who asks, and when: from the connection and the injected clock, never from the request. The time
// is for people: no decision depends on it.
struct Caller {
  std::string author;
  int64_t now_unix_ms = 0;
  // Jobs that workers have something of and the state may not know: their ids are not given again.
  const std::set<std::string>* taken_jobs = nullptr;
  // Whether events of jobs may be posted to a URL, and why not; null: to none.
  const std::function<absl::Status(const std::string& url)>* may_post = nullptr;
};

template <class Response>
struct Decision {
  std::optional<v1::Update> update;  // valid for the state it was decided on; unset: change nothing
  Response response;
  bool repeated = false;  // the response is the first one to this request id
};

// What is known of a job's progress and not durable: the step that its ranks are to make next, as
// they last said.
struct LiveProgress {
  int64_t attempt = 0;  // of which attempt; that of an older one counts for nothing
  int64_t next_step = 0;
  // The attempt lived before the coordinator did, and its rank 0 was not heard from since: nobody
  // knows how far it is.
  bool unheard = false;
};

// decide_submit.cc. The spec is checked whole, the forked recipe against the model.
absl::StatusOr<Decision<v1::SubmitJobResponse>> Decide(const State& state,
                                                       const v1::SubmitJobRequest& request,
                                                       const Caller& caller);
absl::StatusOr<Decision<v1::ForkJobResponse>> Decide(const State& state,
                                                     const v1::ForkJobRequest& request,
                                                     const Caller& caller);

// decide_control.cc. A job without ranks gets there at once, others when their ranks say so.
absl::StatusOr<Decision<v1::PauseJobResponse>> Decide(const State& state,
                                                      const v1::PauseJobRequest& request,
                                                      const Caller& caller);
absl::StatusOr<Decision<v1::ResumeJobResponse>> Decide(const State& state,
                                                       const v1::ResumeJobRequest& request,
                                                       const Caller& caller);
absl::StatusOr<Decision<v1::CancelJobResponse>> Decide(const State& state,
                                                       const v1::CancelJobRequest& request,
                                                       const Caller& caller);
absl::StatusOr<Decision<v1::KillJobResponse>> Decide(const State& state,
                                                     const v1::KillJobRequest& request,
                                                     const Caller& caller);
absl::StatusOr<Decision<v1::CheckpointJobResponse>> Decide(const State& state,
                                                           const v1::CheckpointJobRequest& request,
                                                           const Caller& caller);
absl::StatusOr<Decision<v1::SetJobPriorityResponse>> Decide(
    const State& state, const v1::SetJobPriorityRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::SetJobRestartPolicyResponse>> Decide(
    const State& state, const v1::SetJobRestartPolicyRequest& request, const Caller& caller);

// decide_recipe.cc. FailedPrecondition where expected_revision is stale. "now" is the next step
// that any rank can make: `live` while ranks run, else where the next attempt will begin.
// Unavailable while nobody knows: what ranks have made is never changed.
absl::StatusOr<Decision<v1::SetRecipeResponse>> Decide(const State& state,
                                                       const v1::SetRecipeRequest& request,
                                                       const Caller& caller,
                                                       const LiveProgress& live);
absl::StatusOr<Decision<v1::RollbackRecipeResponse>> Decide(
    const State& state, const v1::RollbackRecipeRequest& request, const Caller& caller,
    const LiveProgress& live);

// decide_checkpoint.cc
absl::StatusOr<Decision<v1::VerifyCheckpointResponse>> Decide(
    const State& state, const v1::VerifyCheckpointRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::ExportCheckpointResponse>> Decide(
    const State& state, const v1::ExportCheckpointRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::PinCheckpointResponse>> Decide(const State& state,
                                                           const v1::PinCheckpointRequest& request,
                                                           const Caller& caller);
absl::StatusOr<Decision<v1::UnpinCheckpointResponse>> Decide(
    const State& state, const v1::UnpinCheckpointRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::DeleteCheckpointResponse>> Decide(
    const State& state, const v1::DeleteCheckpointRequest& request, const Caller& caller);

// decide_cluster.cc
absl::StatusOr<Decision<v1::DrainWorkerResponse>> Decide(const State& state,
                                                         const v1::DrainWorkerRequest& request,
                                                         const Caller& caller);
absl::StatusOr<Decision<v1::UncordonWorkerResponse>> Decide(
    const State& state, const v1::UncordonWorkerRequest& request, const Caller& caller);
absl::StatusOr<Decision<v1::SetQueueResponse>> Decide(const State& state,
                                                      const v1::SetQueueRequest& request,
                                                      const Caller& caller);
absl::StatusOr<Decision<v1::DeleteQueueResponse>> Decide(const State& state,
                                                         const v1::DeleteQueueRequest& request,
                                                         const Caller& caller);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_DECIDE_H_

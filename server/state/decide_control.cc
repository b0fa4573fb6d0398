#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/state/bounds.h"
#include "server/state/decide.h"
#include "server/state/decide_gang.h"
#include "server/state/decide_tools.h"
#include "server/state/job_machine.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using decide::End;
using decide::FindUnfinished;
using decide::Move;
using decide::Once;

void SetGoal(const v1::JobRecord& job, v1::JobGoal goal, const std::string& reason,
             v1::Update& update) {
  // A goal that stands needs no fact: the request is remembered all the same.
  if (job.goal() == goal) return;
  v1::JobGoalSet& set = *update.add_facts()->mutable_job_goal_set();
  set.set_job(job.id());
  set.set_goal(goal);
  set.set_reason(reason);
}

std::string Because(const std::string& what, const std::string& reason) {
  return reason.empty() ? what : absl::StrCat(what, ": ", reason);
}

absl::Status Pause(const v1::JobRecord& job, const std::string& reason, v1::Update& update) {
  if (job.goal() == v1::JOB_GOAL_CANCEL) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", job.id(), " is being cancelled and cannot pause"));
  }
  SetGoal(job, v1::JOB_GOAL_PAUSE, reason, update);
  const bool waits = job.state() == v1::JOB_STATE_QUEUED ||
                     (job.state() == v1::JOB_STATE_RECOVERING && !job.has_attempt());
  if (waits) {
    Move(job.id(), job.state(), v1::JOB_STATE_PAUSED, Because("paused without ranks", reason),
         update);
  }
  return absl::OkStatus();
}

absl::Status Resume(const v1::JobRecord& job, const std::string& reason, v1::Update& update) {
  if (job.goal() != v1::JOB_GOAL_PAUSE) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", job.id(), " is ", StateName(job.state()), " and not asked to pause"));
  }
  SetGoal(job, v1::JOB_GOAL_RUN, reason, update);
  if (job.state() == v1::JOB_STATE_PAUSED && !job.has_attempt()) {
    Move(job.id(), job.state(), v1::JOB_STATE_QUEUED, Because("resumed, waits for slots", reason),
         update);
  }
  return absl::OkStatus();
}

absl::Status Cancel(const v1::JobRecord& job, const v1::CancelJobRequest& request,
                    v1::Update& update) {
  absl::Status status = CheckRange("grace_ms", request.grace_ms(), 0, kMaxGraceMs);
  if (!status.ok()) return status;
  SetGoal(job, v1::JOB_GOAL_CANCEL, request.reason(), update);
  if (!job.has_attempt()) {
    Move(job.id(), job.state(), v1::JOB_STATE_CANCELLED, Because("cancelled", request.reason()),
         update);
    return absl::OkStatus();
  }
  const int64_t grace = request.grace_ms() == 0 ? kDefaultGraceMs : request.grace_ms();
  if (job.attempt().stopping() && StopGraceOf(job.attempt()) <= grace) return absl::OkStatus();
  v1::AttemptStopping& stopping = *update.add_facts()->mutable_attempt_stopping();
  stopping.set_job(job.id());
  stopping.set_attempt(job.attempt().number());
  stopping.set_grace_ms(grace);
  stopping.set_stop_by_unix_ms(update.time_unix_ms() + grace);
  stopping.set_reason(OneLine(Because("cancelled", request.reason())));
  return absl::OkStatus();
}

void Kill(const v1::JobRecord& job, const std::string& reason, v1::Update& update) {
  SetGoal(job, v1::JOB_GOAL_CANCEL, reason, update);
  if (job.has_attempt()) {
    End(job, v1::ATTEMPT_OUTCOME_CANCELLED, Because("killed", reason), update);
  }
  Move(job.id(), job.state(), v1::JOB_STATE_CANCELLED, Because("killed", reason), update);
}

// body(job, update) → Status of a mutation that answers with its job.
template <class Response, class Request, class Body>
absl::StatusOr<Decision<Response>> OfJob(const State& state, const Request& request,
                                         const Caller& caller, Body body) {
  return Once<Response>(state, request, caller, [&](v1::Update& update, Response& response) {
    const absl::StatusOr<const v1::JobRecord*> job = FindUnfinished(state, request.job());
    if (!job.ok()) return job.status();
    response.mutable_job()->set_id(request.job());
    return body(**job, update);
  });
}

}  // namespace

absl::StatusOr<Decision<v1::PauseJobResponse>> Decide(const State& state,
                                                      const v1::PauseJobRequest& request,
                                                      const Caller& caller) {
  return OfJob<v1::PauseJobResponse>(state, request, caller,
                                     [&](const v1::JobRecord& job, v1::Update& update) {
                                       return Pause(job, request.reason(), update);
                                     });
}

absl::StatusOr<Decision<v1::ResumeJobResponse>> Decide(const State& state,
                                                       const v1::ResumeJobRequest& request,
                                                       const Caller& caller) {
  return OfJob<v1::ResumeJobResponse>(state, request, caller,
                                      [&](const v1::JobRecord& job, v1::Update& update) {
                                        return Resume(job, request.reason(), update);
                                      });
}

absl::StatusOr<Decision<v1::CancelJobResponse>> Decide(const State& state,
                                                       const v1::CancelJobRequest& request,
                                                       const Caller& caller) {
  return OfJob<v1::CancelJobResponse>(
      state, request, caller,
      [&](const v1::JobRecord& job, v1::Update& update) { return Cancel(job, request, update); });
}

absl::StatusOr<Decision<v1::KillJobResponse>> Decide(const State& state,
                                                     const v1::KillJobRequest& request,
                                                     const Caller& caller) {
  return OfJob<v1::KillJobResponse>(state, request, caller,
                                    [&](const v1::JobRecord& job, v1::Update& update) {
                                      Kill(job, request.reason(), update);
                                      return absl::OkStatus();
                                    });
}

absl::StatusOr<Decision<v1::CheckpointJobResponse>> Decide(const State& state,
                                                           const v1::CheckpointJobRequest& request,
                                                           const Caller& caller) {
  return OfJob<v1::CheckpointJobResponse>(
      state, request, caller, [&](const v1::JobRecord& job, v1::Update& update) {
        v1::CheckpointRequested& requested = *update.add_facts()->mutable_checkpoint_requested();
        requested.set_job(job.id());
        requested.set_number(job.checkpoint_request() + 1);
        requested.set_reason(request.reason());
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::SetJobPriorityResponse>> Decide(
    const State& state, const v1::SetJobPriorityRequest& request, const Caller& caller) {
  return OfJob<v1::SetJobPriorityResponse>(
      state, request, caller, [&](const v1::JobRecord& job, v1::Update& update) {
        v1::JobPrioritySet& set = *update.add_facts()->mutable_job_priority_set();
        set.set_job(job.id());
        set.set_priority(request.priority());
        set.set_reason(request.reason());
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::SetJobRestartPolicyResponse>> Decide(
    const State& state, const v1::SetJobRestartPolicyRequest& request, const Caller& caller) {
  return OfJob<v1::SetJobRestartPolicyResponse>(
      state, request, caller, [&](const v1::JobRecord& job, v1::Update& update) {
        v1::JobRestartPolicySet& set = *update.add_facts()->mutable_job_restart_policy_set();
        set.set_job(job.id());
        *set.mutable_restart_policy() = request.restart_policy();
        set.set_reason(request.reason());
        return absl::OkStatus();
      });
}

}  // namespace nibble

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/crc32c.h"
#include "common/status_macros.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/views.h"

namespace nibble::decide {
namespace {

uint32_t Fingerprint(const google::protobuf::Message& request) {
  return Crc32c(request.SerializeAsString());
}

std::string MethodOf(const google::protobuf::Message& request) {
  return std::string(absl::StripSuffix(request.GetDescriptor()->name(), "Request"));
}

}  // namespace

v1::Update NextUpdate(const State& state, const Caller& caller) {
  v1::Update update;
  update.set_sequence(state.sequence() + 1);
  update.set_time_unix_ms(std::max<int64_t>(0, caller.now_unix_ms));
  update.set_author(caller.author);
  return update;
}

absl::StatusOr<const v1::JobRecord*> FindUnfinished(const State& state, const std::string& id) {
  const v1::JobRecord* const job = state.FindJob(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job: there is no '", id, "'"));
  if (IsFinished(job->state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", id, " is finished: ", StateName(job->state())));
  }
  return job;
}

void Move(const std::string& job, v1::JobState from, v1::JobState to, std::string reason,
          v1::Update& update) {
  v1::JobMoved& moved = *update.add_facts()->mutable_job_moved();
  moved.set_job(job);
  moved.set_from(from);
  moved.set_to(to);
  moved.set_reason(OneLine(reason));
}

void End(const v1::JobRecord& job, v1::AttemptOutcome outcome, std::string reason,
         v1::Update& update) {
  v1::AttemptEnded& ended = *update.add_facts()->mutable_attempt_ended();
  ended.set_job(job.id());
  ended.set_attempt(job.attempt().number());
  ended.set_outcome(outcome);
  ended.set_reason(OneLine(reason));
}

MaybeUpdate Checked(const State& state, v1::Update update) {
  if (update.facts().empty()) return std::nullopt;
  NIBBLE_RETURN_IF_ERROR(state.Validate(update));
  return update;
}

absl::StatusOr<bool> FindAnswer(const State& state, const google::protobuf::Message& request,
                                const std::string& request_id, const Caller& caller,
                                google::protobuf::Message& response) {
  NIBBLE_RETURN_IF_ERROR(CheckRequestId(request_id));
  const v1::RequestRecord* const record = state.FindRequest(caller.author, request_id);
  if (record == nullptr) return false;
  if (record->method() != MethodOf(request) || record->fingerprint() != Fingerprint(request)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "request_id: '", request_id, "' was used for another request, a ", record->method()));
  }
  if (!response.ParseFromString(record->response())) {
    return absl::DataLossError(
        absl::StrCat("request_id: the answer kept for '", request_id, "' cannot be read"));
  }
  return true;
}

void KeepAnswer(const google::protobuf::Message& request, const std::string& request_id,
                const google::protobuf::Message& response, v1::Update& update) {
  v1::RequestRecord& record = *update.mutable_request();
  record.set_request_id(request_id);
  record.set_method(MethodOf(request));
  record.set_fingerprint(Fingerprint(request));
  record.set_response(response.SerializeAsString());
}

}  // namespace nibble::decide

namespace nibble {
namespace {

using decide::End;
using decide::FindUnfinished;
using decide::Move;
using decide::Once;

void SetGoal(const v1::JobRecord& job, v1::JobGoal goal, const std::string& reason,
             v1::Update& update) {
  // An unchanged goal needs no fact, but the request is recorded.
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
    return absl::FailedPreconditionError(absl::StrCat(
        "job: ", job.id(), " is ", StateName(job.state()), " and its goal is not to pause"));
  }
  SetGoal(job, v1::JOB_GOAL_RUN, reason, update);
  if (job.state() == v1::JOB_STATE_PAUSED && !job.has_attempt()) {
    Move(job.id(), job.state(), v1::JOB_STATE_QUEUED, Because("resumed, waiting for slots", reason),
         update);
  }
  return absl::OkStatus();
}

absl::Status Cancel(const v1::JobRecord& job, const v1::CancelJobRequest& request,
                    v1::Update& update) {
  NIBBLE_RETURN_IF_ERROR(CheckRange("grace_ms", request.grace_ms(), 0, kMaxGraceMs));
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

// A change of one job, whose name is the answer: body(job, update) → Status.
template <class Response, class Request, class Body>
absl::StatusOr<Decision<Response>> OfJob(const State& state, const Request& request,
                                         const Caller& caller, Body body) {
  return Once<Response>(state, request, caller, [&](v1::Update& update, Response& response) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, FindUnfinished(state, request.job()));
    response.mutable_job()->set_id(request.job());
    return body(*job, update);
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

namespace {

// A change of one checkpoint: body(reference with its attempt, update, response).
template <class Response, class Request, class Body>
absl::StatusOr<Decision<Response>> OfCheckpoint(const State& state, const Request& request,
                                                const Caller& caller, Body body) {
  return Once<Response>(state, request, caller, [&](v1::Update& update, Response& response) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef ref, FindCheckpoint(state, request.ref()));
    body(ref, update, response);
    return absl::OkStatus();
  });
}

// Requests a task and returns its number.
int64_t AddTask(const State& state, const v1::CheckpointRef& ref, v1::CheckpointTaskKind kind,
                const std::string& destination, v1::Update& update) {
  const v1::Checkpoint& checkpoint = *state.FindCheckpoint(ref);
  v1::CheckpointTaskSet& set = *update.add_facts()->mutable_checkpoint_task_set();
  *set.mutable_ref() = ref;
  v1::CheckpointTask& task = *set.mutable_task();
  task.set_number(checkpoint.tasks().empty() ? 1 : checkpoint.tasks().rbegin()->number() + 1);
  task.set_kind(kind);
  task.set_destination(destination);
  task.set_state(v1::CHECKPOINT_TASK_STATE_REQUESTED);
  task.set_author(update.author());
  task.set_requested_unix_ms(update.time_unix_ms());
  return task.number();
}

void AddPin(const v1::CheckpointRef& ref, bool pinned, v1::Update& update) {
  v1::CheckpointPinSet& set = *update.add_facts()->mutable_checkpoint_pin_set();
  *set.mutable_ref() = ref;
  set.set_pin(update.author());
  set.set_pinned(pinned);
}

}  // namespace

absl::StatusOr<Decision<v1::VerifyCheckpointResponse>> Decide(
    const State& state, const v1::VerifyCheckpointRequest& request, const Caller& caller) {
  return OfCheckpoint<v1::VerifyCheckpointResponse>(
      state, request, caller,
      [&](const v1::CheckpointRef& ref, v1::Update& update,
          v1::VerifyCheckpointResponse& response) {
        *response.mutable_ref() = ref;
        response.set_task(AddTask(state, ref, v1::CHECKPOINT_TASK_KIND_VERIFY, "", update));
      });
}

absl::StatusOr<Decision<v1::ExportCheckpointResponse>> Decide(
    const State& state, const v1::ExportCheckpointRequest& request, const Caller& caller) {
  if (!absl::StartsWith(request.destination(), "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination: '", request.destination(), "' is not an absolute path"));
  }
  return OfCheckpoint<v1::ExportCheckpointResponse>(
      state, request, caller,
      [&](const v1::CheckpointRef& ref, v1::Update& update,
          v1::ExportCheckpointResponse& response) {
        *response.mutable_ref() = ref;
        response.set_task(
            AddTask(state, ref, v1::CHECKPOINT_TASK_KIND_EXPORT, request.destination(), update));
      });
}

MaybeUpdate DecideUpload(const State& state, const v1::CheckpointRef& ref, const UploadOrder& order,
                         const Caller& caller) {
  const v1::Checkpoint* const checkpoint = state.FindCheckpoint(ref);
  const v1::JobRecord* const job = state.FindJob(ref.job());
  if (checkpoint == nullptr || checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED ||
      job->uploads().has_open()) {
    return std::nullopt;
  }
  v1::Update update = decide::NextUpdate(state, caller);
  (void)AddTask(state, ref, v1::CHECKPOINT_TASK_KIND_UPLOAD, order.place, update);
  v1::CheckpointTask& task =
      *update.mutable_facts()->rbegin()->mutable_checkpoint_task_set()->mutable_task();
  task.set_keep(order.keep);
  task.set_worker(order.worker);
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideUploadLost(const State& state, const std::string& job, const std::string& why,
                             const Caller& caller) {
  const v1::JobRecord* const record = state.FindJob(job);
  if (record == nullptr || !record->uploads().has_open()) return std::nullopt;
  const v1::CheckpointRef& ref = record->uploads().open();
  v1::Update update = decide::NextUpdate(state, caller);
  for (const v1::CheckpointTask& task : state.FindCheckpoint(ref)->tasks()) {
    if (task.kind() != v1::CHECKPOINT_TASK_KIND_UPLOAD ||
        task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED) {
      continue;
    }
    v1::CheckpointTaskSet& set = *update.add_facts()->mutable_checkpoint_task_set();
    *set.mutable_ref() = ref;
    *set.mutable_task() = task;
    set.mutable_task()->set_state(v1::CHECKPOINT_TASK_STATE_FAILED);
    set.mutable_task()->set_detail(why);
    set.mutable_task()->set_ended_unix_ms(update.time_unix_ms());
  }
  return decide::Checked(state, std::move(update));
}

absl::StatusOr<Decision<v1::PinCheckpointResponse>> Decide(const State& state,
                                                           const v1::PinCheckpointRequest& request,
                                                           const Caller& caller) {
  return OfCheckpoint<v1::PinCheckpointResponse>(
      state, request, caller,
      [](const v1::CheckpointRef& ref, v1::Update& update, v1::PinCheckpointResponse& response) {
        *response.mutable_checkpoint()->mutable_ref() = ref;
        AddPin(ref, true, update);
      });
}

absl::StatusOr<Decision<v1::UnpinCheckpointResponse>> Decide(
    const State& state, const v1::UnpinCheckpointRequest& request, const Caller& caller) {
  return OfCheckpoint<v1::UnpinCheckpointResponse>(
      state, request, caller,
      [](const v1::CheckpointRef& ref, v1::Update& update, v1::UnpinCheckpointResponse& response) {
        *response.mutable_checkpoint()->mutable_ref() = ref;
        AddPin(ref, false, update);
      });
}

absl::StatusOr<Decision<v1::DeleteCheckpointResponse>> Decide(
    const State& state, const v1::DeleteCheckpointRequest& request, const Caller& caller) {
  return OfCheckpoint<v1::DeleteCheckpointResponse>(
      state, request, caller,
      [&](const v1::CheckpointRef& ref, v1::Update& update,
          v1::DeleteCheckpointResponse& response) {
        *response.mutable_ref() = ref;
        v1::CheckpointDeleted& deleted = *update.add_facts()->mutable_checkpoint_deleted();
        *deleted.mutable_ref() = ref;
        deleted.set_reason(request.reason());
        deleted.set_kind(v1::DELETION_KIND_REQUESTED);
      });
}

namespace {

void SetMode(const std::string& worker, v1::WorkerMode mode, const std::string& reason,
             v1::Update& update) {
  v1::WorkerModeSet& set = *update.add_facts()->mutable_worker_mode_set();
  set.set_worker(worker);
  set.set_mode(mode);
  set.set_reason(reason);
}

// The worker that calls, if somebody else took it out of service; null otherwise.
const v1::WorkerRecord* TakenByAnother(const State& state, const std::string& name,
                                       const Caller& caller) {
  const v1::WorkerRecord* const worker = caller.is_worker ? state.FindWorker(name) : nullptr;
  const bool taken = worker != nullptr && worker->mode() != v1::WORKER_MODE_OPEN &&
                     worker->mode_author() != caller.author;
  return taken ? worker : nullptr;
}

absl::Status NotItsOwn(const v1::WorkerRecord& worker) {
  return absl::PermissionDeniedError(
      absl::StrCat("worker: ", worker.mode_author(), " took ", worker.identity().name(),
                   " out of service; allowed to change that: an operator"));
}

absl::Status CheckExpected(const v1::Queue* queue, int64_t expected) {
  const int64_t revision = queue == nullptr ? 0 : queue->revision();
  if (expected == -1 || expected == revision) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("expected_revision: ", expected, " is not the queue's revision, ", revision));
}

}  // namespace

absl::StatusOr<Decision<v1::DrainWorkerResponse>> Decide(const State& state,
                                                         const v1::DrainWorkerRequest& request,
                                                         const Caller& caller) {
  return Once<v1::DrainWorkerResponse>(
      state, request, caller, [&](v1::Update& update, v1::DrainWorkerResponse& response) {
        response.mutable_worker()->mutable_identity()->set_name(request.worker());
        if (const v1::WorkerRecord* const taken = TakenByAnother(state, request.worker(), caller)) {
          // It would be the worker's own drain from now on, and undone by it.
          if (taken->mode() == v1::WORKER_MODE_DRAINING) return absl::OkStatus();
          return NotItsOwn(*taken);
        }
        SetMode(request.worker(),
                request.cordon_only() ? v1::WORKER_MODE_CORDONED : v1::WORKER_MODE_DRAINING,
                request.reason(), update);
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::UncordonWorkerResponse>> Decide(
    const State& state, const v1::UncordonWorkerRequest& request, const Caller& caller) {
  return Once<v1::UncordonWorkerResponse>(
      state, request, caller, [&](v1::Update& update, v1::UncordonWorkerResponse& response) {
        if (const v1::WorkerRecord* const taken = TakenByAnother(state, request.worker(), caller)) {
          return NotItsOwn(*taken);
        }
        response.mutable_worker()->mutable_identity()->set_name(request.worker());
        SetMode(request.worker(), v1::WORKER_MODE_OPEN, request.reason(), update);
        if (request.clear_flags()) {
          update.add_facts()->mutable_worker_flags_cleared()->set_worker(request.worker());
        }
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::SetQueueResponse>> Decide(const State& state,
                                                      const v1::SetQueueRequest& request,
                                                      const Caller& caller) {
  return Once<v1::SetQueueResponse>(
      state, request, caller, [&](v1::Update& update, v1::SetQueueResponse& response) {
        const v1::Queue* const known = state.FindQueue(request.queue().name());
        NIBBLE_RETURN_IF_ERROR(CheckExpected(known, request.expected_revision()));
        v1::Queue& queue = *update.add_facts()->mutable_queue_set()->mutable_queue();
        queue = request.queue();
        queue.set_revision(known == nullptr ? 1 : known->revision() + 1);
        *response.mutable_queue() = queue;
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::DeleteQueueResponse>> Decide(const State& state,
                                                         const v1::DeleteQueueRequest& request,
                                                         const Caller& caller) {
  return Once<v1::DeleteQueueResponse>(
      state, request, caller, [&](v1::Update& update, v1::DeleteQueueResponse&) {
        const v1::Queue* const known = state.FindQueue(request.queue());
        if (known == nullptr) {
          return absl::NotFoundError(absl::StrCat("queue: there is no '", request.queue(), "'"));
        }
        NIBBLE_RETURN_IF_ERROR(CheckExpected(known, request.expected_revision()));
        update.add_facts()->mutable_queue_deleted()->set_queue(request.queue());
        return absl::OkStatus();
      });
}

}  // namespace nibble

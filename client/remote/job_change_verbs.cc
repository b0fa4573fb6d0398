#include "client/remote/job_change_verbs.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/local/exit_code.h"
#include "client/remote/find_job.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/scheduling_flags.h"
#include "client/remote/verb.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

struct Flags {
  RemoteFlags remote;
  std::string job, reason, grace;
  int32_t priority = 0;
  bool wait = false;
  RestartFlags restarts;
};

// The request's job and reason are of the flags; the job as it is then is printed.
template <class Request, class Response>
absl::StatusOr<v1::Job> Change(Session& session, const Flags& flags,
                               CoordinatorClient::Method<Request, Response> method,
                               Request request) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  request.set_job(job->id());
  request.set_reason(flags.reason);
  const absl::StatusOr<Response> response = session.Call(method, request);
  if (!response.ok()) return response.status();
  const absl::Status status = session.Print(response->job(), JobLine(response->job()));
  if (!status.ok()) return status;
  return response->job();
}

template <class Request, class Response>
absl::StatusOr<int> ChangeAlone(Session& session, const Flags& flags,
                                CoordinatorClient::Method<Request, Response> method,
                                Request request) {
  const absl::StatusOr<v1::Job> job = Change(session, flags, method, request);
  if (!job.ok()) return job.status();
  return kExitDone;
}

absl::StatusOr<int> Pause(Session& session, const Flags& flags) {
  return ChangeAlone(session, flags, &Stub::PauseJob, v1::PauseJobRequest());
}

absl::StatusOr<int> Resume(Session& session, const Flags& flags) {
  return ChangeAlone(session, flags, &Stub::ResumeJob, v1::ResumeJobRequest());
}

absl::StatusOr<int> Checkpoint(Session& session, const Flags& flags) {
  const absl::StatusOr<int> code =
      ChangeAlone(session, flags, &Stub::CheckpointJob, v1::CheckpointJobRequest());
  if (code.ok()) {
    session.Say(
        "asked for at the next step boundary; `nibble checkpoint list` shows it when it "
        "is whole");
  }
  return code;
}

absl::StatusOr<int> Cancel(Session& session, const Flags& flags) {
  v1::CancelJobRequest request;
  if (!flags.grace.empty()) {
    const absl::StatusOr<absl::Duration> grace = ParseSeconds("--grace", flags.grace);
    if (!grace.ok()) return grace.status();
    request.set_grace_ms(absl::ToInt64Milliseconds(*grace));
  }
  const absl::StatusOr<v1::Job> job = Change(session, flags, &Stub::CancelJob, request);
  if (!job.ok()) return job.status();
  if (!flags.wait) return kExitDone;
  const absl::StatusOr<v1::Job> over = WaitForJob(session, job->id(), {});
  if (!over.ok()) return over.status();
  session.Say(JobLine(*over).substr(0, JobLine(*over).size() - 1));
  return over->state() == v1::JOB_STATE_CANCELLED ? kExitDone : ExitCodeOfJob(over->state());
}

absl::StatusOr<int> Kill(Session& session, const Flags& flags) {
  return ChangeAlone(session, flags, &Stub::KillJob, v1::KillJobRequest());
}

absl::StatusOr<int> Priority(Session& session, const Flags& flags) {
  v1::SetJobPriorityRequest request;
  request.set_priority(flags.priority);
  return ChangeAlone(session, flags, &Stub::SetJobPriority, request);
}

// What is not given stays.
absl::StatusOr<int> Restarts(Session& session, const Flags& flags) {
  if (!flags.restarts.given()) {
    return absl::InvalidArgumentError(
        "restart_policy: nothing to change; --max-restarts, --backoff or --max-backoff says what");
  }
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::RestartPolicy> policy = flags.restarts.Over(job->restart_policy());
  if (!policy.ok()) return policy.status();
  v1::SetJobRestartPolicyRequest request;
  *request.mutable_restart_policy() = *policy;
  return ChangeAlone(session, flags, &Stub::SetJobRestartPolicy, request);
}

class Verbs {
 public:
  Verbs(CLI::App* job, int& exit_code) : job_(job), exit_code_(exit_code) {}

  RemoteVerb<Flags> Add(const char* name, const char* help,
                        absl::StatusOr<int> (*run)(Session&, const Flags&)) {
    RemoteVerb<Flags> verb(job_, name, help);
    verb.app()->add_option("JOB", verb->job, "id, or the beginning of one")->required();
    verb.app()->add_option("--reason", verb->reason, "why, for the job's events");
    verb.Runs(exit_code_, run);
    return verb;
  }

 private:
  CLI::App* job_;
  int& exit_code_;
};

}  // namespace

void AddJobChangeVerbs(CLI::App* job, int& exit_code) {
  Verbs verbs(job, exit_code);
  verbs.Add("pause", "Stand still at the next step boundary", Pause);
  verbs.Add("resume", "Take a pause back", Resume);
  verbs.Add("checkpoint", "Take a checkpoint at the next step boundary", Checkpoint);
  RemoteVerb<Flags> cancel = verbs.Add("cancel", "End a job with a last checkpoint", Cancel);
  cancel.app()->add_option("--grace", cancel->grace,
                           "after this it is killed, such as 30s; 5m where not given");
  cancel.app()->add_flag("--wait", cancel->wait, "Until it has ended");
  verbs.Add("kill", "End a job at once, without a checkpoint", Kill);
  RemoteVerb<Flags> priority = verbs.Add("priority", "Which of waiting jobs goes first", Priority);
  priority.app()
      ->add_option("PRIORITY", priority->priority, "higher goes first; -1000 to 1000")
      ->required();
  RemoteVerb<Flags> restarts =
      verbs.Add("restart-policy", "When a failed attempt is followed by another", Restarts);
  AddRestartOptions(restarts.app(), restarts->restarts);
}

}  // namespace nibble

#include "client/remote/job_change_verbs.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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

// The request's reason is of the flags; the job as it is then.
template <class Request, class Response>
absl::StatusOr<v1::Job> Ask(Session& session, const Flags& flags, const v1::Job& job,
                            CoordinatorClient::Method<Request, Response> method, Request request) {
  request.set_job(job.id());
  request.set_reason(flags.reason);
  absl::StatusOr<Response> response = session.Call(method, std::move(request));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

template <class Request, class Response>
absl::StatusOr<v1::Job> Change(Session& session, const Flags& flags,
                               CoordinatorClient::Method<Request, Response> method,
                               Request request) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  return Ask(session, flags, *job, method, std::move(request));
}

// For people also `remark`, a line that tells what the job's state does not.
absl::StatusOr<int> Told(Session& session, const absl::StatusOr<v1::Job>& job,
                         std::string (*remark)(const v1::Job&) = nullptr) {
  if (!job.ok()) return job.status();
  return session.Finish(*job,
                        absl::StrCat(JobLine(*job), remark == nullptr ? "" : remark(*job) + "\n"));
}

absl::StatusOr<int> Pause(Session& session, const Flags& flags) {
  return Told(session, Change(session, flags, &Stub::PauseJob, v1::PauseJobRequest()));
}

absl::StatusOr<int> Resume(Session& session, const Flags& flags) {
  return Told(session, Change(session, flags, &Stub::ResumeJob, v1::ResumeJobRequest()));
}

absl::StatusOr<int> Checkpoint(Session& session, const Flags& flags) {
  return Told(session, Change(session, flags, &Stub::CheckpointJob, v1::CheckpointJobRequest()),
              [](const v1::Job& job) {
                return absl::StrCat(
                    "a checkpoint is asked for at the next step boundary; `nibble "
                    "checkpoint list ",
                    job.id(), "` shows it when it is whole");
              });
}

absl::StatusOr<int> Cancel(Session& session, const Flags& flags) {
  v1::CancelJobRequest request;
  if (!flags.grace.empty()) {
    const absl::StatusOr<absl::Duration> grace = ParseSeconds(flags.grace);
    if (!grace.ok()) return grace.status();
    request.set_grace_ms(absl::ToInt64Milliseconds(*grace));
  }
  const absl::StatusOr<v1::Job> job = Change(session, flags, &Stub::CancelJob, request);
  if (!flags.wait || !job.ok() || IsOver(job->state())) return Told(session, job);
  const absl::StatusOr<v1::Job> over = WaitForJob(session, job->id(), {});
  const absl::StatusOr<int> told = Told(session, over);
  if (!told.ok() || over->state() == v1::JOB_STATE_CANCELLED) return told;
  return ExitCodeOfJob(over->state());
}

absl::StatusOr<int> Kill(Session& session, const Flags& flags) {
  return Told(session, Change(session, flags, &Stub::KillJob, v1::KillJobRequest()));
}

absl::StatusOr<int> Priority(Session& session, const Flags& flags) {
  v1::SetJobPriorityRequest request;
  request.set_priority(flags.priority);
  return Told(session, Change(session, flags, &Stub::SetJobPriority, request),
              [](const v1::Job& job) {
                return absl::StrCat("priority ", job.scheduling().priority(), " in queue ",
                                    job.scheduling().queue());
              });
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
  return Told(session, Ask(session, flags, *job, &Stub::SetJobRestartPolicy, request),
              [](const v1::Job& job) { return absl::StrCat("restarts ", RestartsText(job)); });
}

class Verbs {
 public:
  Verbs(CLI::App* job, int& exit_code) : job_(job), exit_code_(exit_code) {}

  RemoteVerb<Flags> Add(const char* name, const char* help,
                        absl::StatusOr<int> (*run)(Session&, const Flags&)) {
    RemoteVerb<Flags> verb(job_, name, help);
    AddJobOption(verb.app(), verb->job);
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
  verbs.Add("pause", "Stand still at the next step boundary; the job keeps its slots", Pause);
  verbs.Add("resume", "Go on after a pause, or take back one that is asked for", Resume);
  verbs.Add("checkpoint", "Take a checkpoint at the next step boundary", Checkpoint);
  RemoteVerb<Flags> cancel = verbs.Add("cancel", "End a job with a last checkpoint", Cancel);
  AddSecondsOption(cancel.app(), "--grace", cancel->grace,
                   "after this it is killed, such as 30s; 5m where not given");
  cancel.app()->add_flag("--wait", cancel->wait, "Until it has ended; 0 where it is cancelled");
  TimeoutEndsWait(cancel.app());
  verbs.Add("kill", "End a job at once, without a checkpoint", Kill);
  RemoteVerb<Flags> priority =
      verbs.Add("priority", "Say which of waiting jobs goes first", Priority);
  priority.app()
      ->add_option("PRIORITY", priority->priority, "higher goes first; -1000 to 1000")
      ->required();
  RemoteVerb<Flags> restarts = verbs.Add(
      "restart-policy", "Say when a failed attempt is followed by another; what is not given stays",
      Restarts);
  AddRestartOptions(restarts.app(), restarts->restarts);
}

}  // namespace nibble

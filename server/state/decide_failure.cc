#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/bounds.h"
#include "server/state/decide_gang.h"
#include "server/state/decide_tools.h"
#include "server/state/job_machine.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using decide::Failure;

// Attempts of this job that the worker has ended so far.
int32_t FailuresOf(const v1::JobRecord& job, const std::string& worker) {
  for (const v1::WorkerBlame& blame : job.blames()) {
    if (blame.worker() == worker) return blame.failures();
  }
  return 0;
}

bool IsExcluded(const v1::JobRecord& job, const std::string& worker) {
  return std::any_of(job.blames().begin(), job.blames().end(), [&](const v1::WorkerBlame& blame) {
    return blame.excluded() && blame.worker() == worker;
  });
}

// A job that cannot do without a worker is given up by its restart policy, with the reason, and
// does not wait for another that nobody will bring.
bool CanDoWithout(const State& state, const v1::JobRecord& job, const std::string& worker) {
  int64_t slots = 0;
  for (const auto& [name, other] : state.tables().workers) {
    if (name == worker || !other->present() || other->mode() != v1::WORKER_MODE_OPEN) continue;
    if (!IsExcluded(job, name)) slots += other->identity().slots();
  }
  return slots >= job.scheduling().allowed_ranks(0);
}

void Blame(const State& state, const v1::JobRecord& job, const std::string& worker,
           const std::string& reason, v1::Update& update) {
  const int32_t failures = FailuresOf(job, worker) + 1;
  v1::WorkerBlamed& blamed = *update.add_facts()->mutable_worker_blamed();
  blamed.set_job(job.id());
  blamed.set_worker(worker);
  blamed.set_reason(OneLine(reason));
  if (failures < kFailuresUntilExcluded || IsExcluded(job, worker)) return;
  blamed.set_excluded(CanDoWithout(state, job, worker));
  if (!blamed.excluded() && failures > kFailuresUntilExcluded) return;
  v1::WorkerFlagged& flagged = *update.add_facts()->mutable_worker_flagged();
  flagged.set_worker(worker);
  flagged.set_flag(
      OneLine(absl::StrCat("ended ", failures, " attempts of ", job.id(), "; the last: ", reason)));
}

bool IsMachines(v1::FailureCause cause) {
  switch (cause) {
    case v1::FAILURE_CAUSE_SPEC:
    case v1::FAILURE_CAUSE_CHECKPOINT:
    case v1::FAILURE_CAUSE_DISK:
    case v1::FAILURE_CAUSE_PEER:
    case v1::FAILURE_CAUSE_GUARD_PAUSE:
    case v1::FAILURE_CAUSE_GUARD_ROLLBACK:
    case v1::FAILURE_CAUSE_GUARD_FAIL:
      return false;
    default:  // unknown, too: a newer worker's
      return true;
  }
}

// Another attempt would fail alike.
bool EndsTheJob(v1::FailureCause cause) {
  return cause == v1::FAILURE_CAUSE_SPEC || cause == v1::FAILURE_CAUSE_GUARD_FAIL;
}

// Whether the failure is one towards the job's restart limit. A disk may be full for as long as it
// takes, and a checkpoint that is known to be damaged is not begun from again.
bool CountsAgainstTheJob(const State& state, const v1::JobRecord& job, v1::FailureCause cause) {
  if (EndsTheJob(cause)) return false;
  switch (cause) {
    case v1::FAILURE_CAUSE_DISK:
    case v1::FAILURE_CAUSE_GUARD_PAUSE:
    case v1::FAILURE_CAUSE_GUARD_ROLLBACK:  // has a bound of its own
      return false;
    case v1::FAILURE_CAUSE_CHECKPOINT: {
      if (!job.attempt().has_resume()) return true;
      const v1::Checkpoint* const begun = state.FindCheckpoint(job.attempt().resume());
      return begun != nullptr && begun->state() == v1::CHECKPOINT_STATE_COMMITTED;
    }
    default:
      return true;
  }
}

// Attempts that ended one after the other for this cause, the present one among them.
int32_t InARow(const v1::JobRecord& job, v1::FailureCause cause) {
  int32_t count = 1;
  const auto& recent = job.recent_attempts();
  for (auto at = recent.rbegin(); at != recent.rend() && at->cause() == cause; ++at) ++count;
  return count;
}

// Where the job goes whose attempt has just failed. `failures`: that count, this one too.
void MoveAfterFailure(const v1::JobRecord& job, int32_t failures, const Failure& failure,
                      v1::Update& update) {
  const std::string& reason = failure.reason;
  if (job.goal() == v1::JOB_GOAL_CANCEL) {
    decide::Move(job.id(), job.state(), v1::JOB_STATE_CANCELLED,
                 absl::StrCat("cancelled; its attempt ended before its last checkpoint: ", reason),
                 update);
    return;
  }
  const bool pauses = failure.cause == v1::FAILURE_CAUSE_GUARD_PAUSE;
  if (pauses && job.goal() != v1::JOB_GOAL_PAUSE) {
    v1::JobGoalSet& goal = *update.add_facts()->mutable_job_goal_set();
    goal.set_job(job.id());
    goal.set_goal(v1::JOB_GOAL_PAUSE);
    goal.set_reason(OneLine(reason));
  }
  if (job.state() == v1::JOB_STATE_PAUSED) {
    if (job.goal() == v1::JOB_GOAL_RUN && !pauses) {
      decide::Move(job.id(), job.state(), v1::JOB_STATE_QUEUED,
                   absl::StrCat("its attempt failed before it went on: ", reason), update);
    }
    return;
  }
  if (EndsTheJob(failure.cause)) {
    decide::Move(job.id(), job.state(), v1::JOB_STATE_FAILED, reason, update);
    return;
  }
  if (failures > job.restart_policy().max_without_progress()) {
    decide::Move(
        job.id(), job.state(), v1::JOB_STATE_FAILED,
        absl::StrCat("given up after ", failures, failures == 1 ? " failure" : " failures in a row",
                     " without a new checkpoint; the last: ", reason),
        update);
    return;
  }
  v1::JobState at = job.state();
  if (at == v1::JOB_STATE_PREEMPTED) {
    decide::Move(job.id(), at, v1::JOB_STATE_QUEUED,
                 absl::StrCat("its attempt failed while it was preempted: ", reason), update);
    at = v1::JOB_STATE_QUEUED;
  } else if (at != v1::JOB_STATE_RECOVERING && !(pauses && at == v1::JOB_STATE_RUNNING)) {
    decide::Move(job.id(), at, v1::JOB_STATE_RECOVERING, reason, update);
    at = v1::JOB_STATE_RECOVERING;
  }
  if (pauses || job.goal() == v1::JOB_GOAL_PAUSE) {
    decide::Move(job.id(), at, v1::JOB_STATE_PAUSED, pauses ? reason : "paused without ranks",
                 update);
  }
}

}  // namespace

int64_t BackoffMs(const v1::RestartPolicy& policy, int32_t failures) {
  int64_t backoff = policy.initial_backoff_ms();
  for (int32_t i = 1; i < failures && backoff < policy.max_backoff_ms() && backoff > 0; ++i) {
    backoff *= 2;
  }
  return std::min(backoff, policy.max_backoff_ms());
}

int64_t BackoffOf(const v1::JobRecord& job) {
  if (job.backoff_ms() > 0 || job.not_before_unix_ms() == 0) return job.backoff_ms();
  return BackoffMs(job.restart_policy(), job.restarts_without_progress());
}

namespace decide {

void AddFailure(const State& state, const v1::JobRecord& job, const Failure& reported,
                v1::Update& update) {
  Failure failure = reported;
  if (failure.cause == v1::FAILURE_CAUSE_GUARD_ROLLBACK &&
      InARow(job, failure.cause) > kMaxRollbacks) {
    // Training is deterministic: what did not help twice will not help.
    failure.cause = v1::FAILURE_CAUSE_GUARD_PAUSE;
    failure.reason =
        absl::StrCat("rolled back ", kMaxRollbacks, " times, and again: ", failure.reason);
  }
  const bool counts = CountsAgainstTheJob(state, job, failure.cause);
  const int32_t failures = job.restarts_without_progress() + (counts ? 1 : 0);
  End(job, failure.outcome, failure.reason, update);
  v1::AttemptEnded& ended = *update.mutable_facts()->rbegin()->mutable_attempt_ended();
  ended.set_cause(failure.cause);
  ended.set_counts_as_failure(counts);
  if (!EndsTheJob(failure.cause) && failure.cause != v1::FAILURE_CAUSE_GUARD_PAUSE) {
    const bool own_count = failure.cause == v1::FAILURE_CAUSE_DISK ||
                           failure.cause == v1::FAILURE_CAUSE_GUARD_ROLLBACK;
    const int32_t tries = own_count ? InARow(job, failure.cause) : failures;
    ended.set_backoff_ms(BackoffMs(job.restart_policy(), std::max(tries, 1)));
  }
  if (ended.backoff_ms() > 0) {
    ended.set_not_before_unix_ms(update.time_unix_ms() + ended.backoff_ms());
  }
  if (IsMachines(failure.cause) && !failure.worker.empty() &&
      state.FindWorker(failure.worker) != nullptr) {
    Blame(state, job, failure.worker, failure.reason, update);
  }
  MoveAfterFailure(job, failures, failure, update);
}

}  // namespace decide

MaybeUpdate DecideAttemptFailed(const State& state, const std::string& job, int64_t attempt,
                                v1::AttemptOutcome outcome, const std::string& worker,
                                const std::string& reason, const Caller& caller) {
  const absl::StatusOr<const v1::JobRecord*> found = decide::FindUnfinished(state, job);
  if (!found.ok()) return found.status();
  if (!(*found)->has_attempt() || (*found)->attempt().number() != attempt) {
    return absl::AbortedError(absl::StrCat("attempt: ", attempt, " of ", job,
                                           " is over; the latest is ", (*found)->last_attempt()));
  }
  v1::Update update = decide::NextUpdate(state, caller);
  decide::AddFailure(state, **found, {.outcome = outcome, .worker = worker, .reason = reason},
                     update);
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideWorkerLost(const State& state, const std::string& worker, int64_t incarnation,
                             const std::string& reason, const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  for (const std::string& job : state.index().GangsOn(worker)) {
    decide::AddFailure(state, *state.FindJob(job),
                       {.outcome = v1::ATTEMPT_OUTCOME_LOST,
                        .worker = worker,
                        .reason = absl::StrCat("worker ", worker, " is lost: ", reason)},
                       update);
  }
  v1::WorkerLost& lost = *update.add_facts()->mutable_worker_lost();
  lost.set_worker(worker);
  lost.set_incarnation(incarnation);
  lost.set_reason(OneLine(reason));
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideRegister(const State& state, const v1::WorkerIdentity& identity,
                           const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  const v1::WorkerRecord* const known = state.FindWorker(identity.name());
  if (known != nullptr && known->present() &&
      known->identity().SerializeAsString() == identity.SerializeAsString()) {
    return std::nullopt;
  }
  if (known != nullptr && identity.incarnation() > known->identity().incarnation()) {
    for (const std::string& job : state.index().GangsOn(identity.name())) {
      decide::AddFailure(state, *state.FindJob(job),
                         {.outcome = v1::ATTEMPT_OUTCOME_LOST,
                          .worker = identity.name(),
                          .reason = absl::StrCat("worker ", identity.name(), " was started anew")},
                         update);
    }
  }
  *update.add_facts()->mutable_worker_registered()->mutable_identity() = identity;
  return decide::Checked(state, std::move(update));
}

}  // namespace nibble

// What follows from an attempt that failed: who is blamed, whether it counts, how long the job
// waits, where a guard rolls it back to.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

using decide::Failure;

// The number of attempts of this job that the worker has ended so far.
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

// Whether the job can run without the worker. If not, the worker is not excluded: the restart
// policy ends the job with the reason, rather than the job waiting for slots that never come.
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
    default:  // also unknown causes of newer workers
      return true;
  }
}

// Whether another attempt would fail the same way.
bool EndsTheJob(v1::FailureCause cause) {
  return cause == v1::FAILURE_CAUSE_SPEC || cause == v1::FAILURE_CAUSE_GUARD_FAIL;
}

// Whether the failure counts towards the job's restart limit. A full disk is waited for without
// limit, and no attempt resumes from a checkpoint that is known to be damaged.
bool CountsAgainstTheJob(const State& state, const v1::JobRecord& job, v1::FailureCause cause) {
  if (EndsTheJob(cause)) return false;
  switch (cause) {
    case v1::FAILURE_CAUSE_DISK:
    case v1::FAILURE_CAUSE_GUARD_PAUSE:
    case v1::FAILURE_CAUSE_GUARD_ROLLBACK:  // guards.max_rollbacks bounds these
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

// The number of attempts in a row that ended for this cause, including the present one.
int32_t InARow(const v1::JobRecord& job, v1::FailureCause cause) {
  int32_t count = 1;
  const auto& recent = job.recent_attempts();
  for (auto at = recent.rbegin(); at != recent.rend() && at->cause() == cause; ++at) ++count;
  return count;
}

// The step from which a job that a guard rolls back runs again: that of the newest good checkpoint,
// or of the beginning of the run, which is guards.rollback_margin steps or more before the last
// step that the guards judged good. If older checkpoints than those that are left existed once, the
// oldest that is left. FailedPrecondition if the failed attempt has tried that.
absl::StatusOr<int64_t> RollbackStep(const State& state, const v1::JobRecord& job,
                                     const JobSpec& spec, const v1::GuardDecision& decision) {
  const int64_t good = decision.step() - std::max<int64_t>(decision.harmed_steps(), 1);
  const int64_t limit = good - spec.guards.rollback_margin;
  const bool forked = job.has_origin() && !job.origin().weights_only();
  const int64_t begin = forked ? job.origin().checkpoint().step() : 0;
  std::vector<const v1::Checkpoint*> all = state.CheckpointsOf(job.id());
  std::reverse(all.begin(), all.end());
  int64_t oldest = -1;
  for (const v1::Checkpoint* checkpoint : all) {
    if (checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED || checkpoint->left()) continue;
    oldest = checkpoint->ref().step();
    if (oldest <= limit) return oldest;
  }
  const int64_t every = spec.checkpoints.every;
  if (oldest < 0 || every == 0 || limit < (begin / every + 1) * every) return begin;
  if (FirstStep(job) != oldest) return oldest;
  return absl::FailedPreconditionError(absl::StrCat(
      "no checkpoint of step ", limit, " or before is left (guards.rollback_margin: ",
      spec.guards.rollback_margin, "), and the oldest, of step ", oldest, ", was tried"));
}

// The attempts in a row that guards rolled back, including the present one, with their reasons.
std::string AllTries(const v1::JobRecord& job, int32_t tries, const std::string& reason) {
  constexpr int64_t kAllBytes = 1400;
  const auto text = [&](const v1::Attempt& attempt, const std::string& why) {
    const int64_t from = TakesOnlyWeights(job, attempt.resume()) ? 0 : attempt.resume().step();
    return absl::StrCat("attempt ", attempt.number(), " from step ", from, ": ",
                        Clip(why, kAllBytes / tries));
  };
  std::string all;
  const auto& recent = job.recent_attempts();
  for (int i = std::max(0, recent.size() - (tries - 1)); i < recent.size(); ++i) {
    absl::StrAppend(&all, text(recent[i], recent[i].reason()), "; ");
  }
  return absl::StrCat(all, text(job.attempt(), reason));
}

struct PreparedRollback {
  std::optional<int64_t> step;  // later checkpoints are abandoned; unset: none are
  v1::RecipeRevised safer;
};

// What a rollback by a guard changes. The job is paused instead if it was rolled back as often in a
// row as its spec allows, or if it cannot have a safer recipe or an earlier checkpoint.
PreparedRollback PrepareRollback(const State& state, const v1::JobRecord& job,
                                 const v1::Update& update, Failure& failure) {
  PreparedRollback prepared;
  const auto pause = [&failure](const std::string& why) {
    failure.cause = v1::FAILURE_CAUSE_GUARD_PAUSE;
    failure.reason = why;
  };
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(state.FindSpec(job.id())->spec_yaml());
  if (!spec.ok()) {
    pause(absl::StrCat("cannot be rolled back, since its spec cannot be read: ",
                       std::string(spec.status().message()), "; ", failure.reason));
    return prepared;
  }
  const absl::StatusOr<int64_t> step = RollbackStep(state, job, *spec, failure.decision);
  const int32_t tries = InARow(job, failure.cause);
  if (step.ok()) prepared.step = *step;
  if (tries > spec->guards.max_rollbacks) {
    pause(absl::StrCat("rolled back ", tries - 1,
                       " times in a row: ", AllTries(job, tries, failure.reason)));
    return prepared;
  }
  if (!step.ok()) {
    pause(absl::StrCat("cannot be rolled back further: ", std::string(step.status().message()),
                       ": ", AllTries(job, tries, failure.reason)));
    return prepared;
  }
  absl::StatusOr<v1::RecipeRevised> safer =
      decide::SaferRecipe(state, job,
                          {.step = *step,
                           .decision = failure.decision,
                           .author = update.author(),
                           .time_unix_ms = update.time_unix_ms(),
                           .reason = absl::StrCat("rolled back: ", failure.reason)});
  if (!safer.ok()) {
    pause(absl::StrCat("rolled back, but the recipe cannot be made safer: ",
                       std::string(safer.status().message()), "; ", failure.reason));
    return prepared;
  }
  prepared.safer = *std::move(safer);
  return prepared;
}

// Moves a job whose attempt has just failed. `failures` in a row, including this one.
void MoveAfterFailure(const v1::JobRecord& job, int32_t failures, const Failure& failure,
                      v1::Update& update) {
  const std::string& reason = failure.reason;
  if (job.goal() == v1::JOB_GOAL_CANCEL) {
    decide::Move(job.id(), job.state(), v1::JOB_STATE_CANCELLED,
                 absl::StrCat("cancelled; its attempt ended before its final checkpoint: ", reason),
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
                   absl::StrCat("its attempt failed before it resumed: ", reason), update);
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
        absl::StrCat("failed after ", failures, failures == 1 ? " failure" : " failures in a row",
                     " without a new checkpoint; the last: ", reason),
        update);
    return;
  }
  v1::JobState at = job.state();
  if (at == v1::JOB_STATE_PREEMPTED) {
    decide::Move(job.id(), at, v1::JOB_STATE_QUEUED,
                 absl::StrCat("its attempt failed during preemption: ", reason), update);
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
  PreparedRollback rollback;
  if (failure.cause == v1::FAILURE_CAUSE_GUARD_ROLLBACK) {
    rollback = PrepareRollback(state, job, update, failure);
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
  if (rollback.step.has_value()) {
    ended.set_rolls_back(true);
    ended.set_rollback_step(*rollback.step);
  }
  if (rollback.safer.revisions_size() > 0) {
    *update.add_facts()->mutable_recipe_revised() = rollback.safer;
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
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const found, decide::FindUnfinished(state, job));
  if (!found->has_attempt() || found->attempt().number() != attempt) {
    return absl::AbortedError(absl::StrCat("attempt: ", attempt, " of ", job,
                                           " is over; the latest is ", found->last_attempt()));
  }
  v1::Update update = decide::NextUpdate(state, caller);
  decide::AddFailure(state, *found, {.outcome = outcome, .worker = worker, .reason = reason},
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
                        .reason = absl::StrCat("worker ", worker, " was lost: ", reason)},
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
                          .reason = absl::StrCat("worker ", identity.name(), " was restarted")},
                         update);
    }
  }
  *update.add_facts()->mutable_worker_registered()->mutable_identity() = identity;
  return decide::Checked(state, std::move(update));
}

}  // namespace nibble

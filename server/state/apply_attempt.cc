#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble::apply {
namespace {

// The slots of a worker that live attempts use.
std::set<int32_t> UsedSlots(const Draft& draft, const std::string& worker) {
  std::set<int32_t> used;
  for (const std::string& id : draft.GangsOn(worker)) {
    for (const v1::Placement& placement : draft.jobs.Find(id)->attempt().placements()) {
      if (placement.worker() != worker) continue;
      used.insert(placement.slots().begin(), placement.slots().end());
    }
  }
  return used;
}

absl::Status CheckPlacement(const v1::Placement& placement, const v1::JobRecord& job,
                            const Draft& draft) {
  const v1::WorkerRecord* const worker = draft.workers.Find(placement.worker());
  if (worker == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("placements: there is no worker '", placement.worker(), "'"));
  }
  if (worker->identity().incarnation() != placement.incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation: ", placement.incarnation(), " of worker ",
                                           placement.worker(), " is over; the current one is ",
                                           worker->identity().incarnation()));
  }
  if (!worker->present() || worker->mode() != v1::WORKER_MODE_OPEN) {
    return absl::FailedPreconditionError(
        absl::StrCat("placements: worker ", placement.worker(), " is ",
                     worker->present() ? "cordoned or draining" : "absent"));
  }
  for (const v1::WorkerBlame& blame : job.blames()) {
    if (blame.excluded() && blame.worker() == placement.worker()) {
      return absl::FailedPreconditionError(absl::StrCat("placements: worker ", placement.worker(),
                                                        " is excluded from job ", job.id()));
    }
  }
  if (placement.slots().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("placements: worker ", placement.worker(), " has no slots"));
  }
  if (placement.phase() != v1::RANK_PHASE_ASSIGNED) {
    return absl::InvalidArgumentError(absl::StrCat("placements: ranks on ", placement.worker(),
                                                   " start as ", PhaseName(placement.phase()),
                                                   " instead of ASSIGNED"));
  }
  std::set<int32_t> used = UsedSlots(draft, placement.worker());
  for (const int32_t slot : placement.slots()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("placements.slots", slot, 0, worker->identity().slots() - 1));
    if (!used.insert(slot).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("placements: slot ", slot, " of worker ", placement.worker(), " is in use"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckResume(const v1::Attempt& attempt, const v1::JobRecord& job, const Draft& draft) {
  if (!attempt.has_resume()) {
    const v1::Checkpoint* const newest = draft.ResumeOf(job);
    if (newest == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "resume: is not set, but the job must resume from the ", CheckpointText(newest->ref())));
  }
  const bool own = attempt.resume().job() == job.id();
  const v1::Checkpoint* const origin = draft.OriginOf(job);
  const bool is_origin =
      origin != nullptr && CheckpointKey(origin->ref()) == CheckpointKey(attempt.resume());
  if (!own && !is_origin) {
    return absl::InvalidArgumentError(absl::StrCat("resume: the ", CheckpointText(attempt.resume()),
                                                   " does not belong to ", job.id()));
  }
  const v1::Checkpoint* const checkpoint = draft.checkpoints.Find(CheckpointKey(attempt.resume()));
  if (checkpoint == nullptr || checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED) {
    return absl::FailedPreconditionError(absl::StrCat(
        "resume: the ", CheckpointText(attempt.resume()), " is not committed or is damaged"));
  }
  return absl::OkStatus();
}

absl::Status CheckLaunch(const v1::Attempt& attempt, const v1::JobRecord& job, const Draft& draft) {
  if (job.has_attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt: ", job.attempt().number(), " of ", job.id(), " is still live"));
  }
  if (attempt.number() != job.last_attempt() + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("attempt: ", attempt.number(), "; the next is ", job.last_attempt() + 1));
  }
  if ((job.state() != v1::JOB_STATE_QUEUED && job.state() != v1::JOB_STATE_RECOVERING) ||
      job.goal() != v1::JOB_GOAL_RUN) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job: ", job.id(), " is ", StateName(job.state()), " or its goal is not to run"));
  }
  const auto& allowed = job.scheduling().allowed_ranks();
  if (std::find(allowed.begin(), allowed.end(), attempt.world()) == allowed.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world: ", attempt.world(), " is not one of the world sizes that ", job.id(), " allows"));
  }
  int32_t ranks = 0;
  std::set<std::string> workers;
  for (const v1::Placement& placement : attempt.placements()) {
    if (placement.first_rank() != ranks || !workers.insert(placement.worker()).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "placements: ranks on ", placement.worker(), ": the first is rank ",
          placement.first_rank(), " instead of ", ranks, ", or the worker appears twice"));
    }
    NIBBLE_RETURN_IF_ERROR(CheckPlacement(placement, job, draft));
    ranks += placement.slots_size();
  }
  if (ranks != attempt.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("placements: have ", ranks, " ranks; the world has ", attempt.world()));
  }
  return CheckResume(attempt, job, draft);
}

// The duration in milliseconds. Journals of older versions store only the end time, which was
// computed from the same clock reading as the stamp.
int64_t DurationOf(int64_t duration_ms, int64_t until_unix_ms, const Stamp& stamp) {
  if (duration_ms != 0 || until_unix_ms == 0) return duration_ms;
  return std::max<int64_t>(1, until_unix_ms - stamp.time_unix_ms);
}

// Deletes the unfinished checkpoints of an attempt that is over: nothing can complete them.
void DropUncommitted(const std::string& job, int64_t attempt, const Stamp& stamp, Draft& draft) {
  for (const auto& [key, checkpoint] : draft.checkpoints.WithPrefix(JobPrefix(job))) {
    if (checkpoint->ref().attempt() != attempt ||
        checkpoint->state() != v1::CHECKPOINT_STATE_WRITING) {
      continue;
    }
    EraseCheckpoint(*checkpoint, v1::DELETION_KIND_NOT_COMMITTED, NotCommittedText(attempt), stamp,
                    draft);
  }
}

}  // namespace

void AddEnded(v1::Attempt ended, v1::JobRecord& job) {
  auto& recent = *job.mutable_recent_attempts();
  if (recent.size() == kMaxRecentAttempts) recent.erase(recent.begin());
  *recent.Add() = std::move(ended);
}

absl::Status Apply(const v1::AttemptLaunched& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckLaunch(fact.attempt(), *job, draft));
  v1::Attempt& attempt = *job->mutable_attempt();
  attempt.set_number(fact.attempt().number());
  attempt.set_world(fact.attempt().world());
  *attempt.mutable_placements() = fact.attempt().placements();
  if (fact.attempt().has_resume()) *attempt.mutable_resume() = fact.attempt().resume();
  attempt.set_launched_unix_ms(stamp.time_unix_ms);
  job->set_last_attempt(attempt.number());
  job->clear_not_before_unix_ms();
  job->clear_backoff_ms();
  AddEvent({.kind = v1::JOB_EVENT_KIND_ATTEMPT,
            .text = absl::StrCat(
                "attempt ", attempt.number(), " launched with ", Counted(attempt.world(), "rank"),
                " on ", Counted(attempt.placements_size(), "worker"),
                fact.reason().empty() ? "" : ": ", Clip(fact.reason(), kMaxClause)),
            .attempt = attempt.number(),
            .step = FirstStep(*job)},
           stamp, *job, draft);
  LeaveCheckpointsBeyond(FirstStep(*job), stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::AttemptStopping& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.attempt()));
  const int64_t grace_ms = DurationOf(fact.grace_ms(), fact.stop_by_unix_ms(), stamp);
  NIBBLE_RETURN_IF_ERROR(CheckRange("grace_ms", grace_ms, 1, kMaxGraceMs));
  v1::Attempt& attempt = *job->mutable_attempt();
  if (attempt.stop_grace_ms() > 0 && attempt.stop_grace_ms() <= grace_ms) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt: ", fact.attempt(), " of ", fact.job(), " is already stopping"));
  }
  attempt.set_stopping(true);
  attempt.set_stop_grace_ms(grace_ms);
  attempt.set_stop_by_unix_ms(fact.stop_by_unix_ms());
  AddEvent({.kind = v1::JOB_EVENT_KIND_ATTEMPT,
            .text = absl::StrCat("attempt ", fact.attempt(),
                                 " was asked to stop: ", Clip(fact.reason(), kMaxClause)),
            .attempt = fact.attempt()},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::AttemptEnded& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.attempt()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("outcome", fact.outcome(), v1::ATTEMPT_OUTCOME_SUCCEEDED,
                                    v1::ATTEMPT_OUTCOME_CANCELLED));
  const int64_t backoff_ms = DurationOf(fact.backoff_ms(), fact.not_before_unix_ms(), stamp);
  NIBBLE_RETURN_IF_ERROR(CheckRange("backoff_ms", backoff_ms, 0, kMaxBackoffMs));
  NIBBLE_RETURN_IF_ERROR(CheckRange("rollback_step", fact.rollback_step(), 0, kMaxSteps));
  v1::Attempt ended = job->attempt();
  job->clear_attempt();
  ended.set_outcome(fact.outcome());
  ended.set_reason(fact.reason());
  ended.set_cause(fact.cause());
  ended.set_ended_unix_ms(stamp.time_unix_ms);
  AddEnded(std::move(ended), *job);
  if (fact.counts_as_failure()) {
    job->set_restarts_without_progress(job->restarts_without_progress() + 1);
  }
  job->set_not_before_unix_ms(fact.not_before_unix_ms());
  job->set_backoff_ms(backoff_ms);
  DropUncommitted(fact.job(), fact.attempt(), stamp, draft);
  SettleTimeline(fact.outcome() == v1::ATTEMPT_OUTCOME_SUCCEEDED, *job, draft);
  AddEvent(
      {.kind = v1::JOB_EVENT_KIND_ATTEMPT,
       .text = absl::StrCat("attempt ", fact.attempt(), " ended, ", OutcomeName(fact.outcome()),
                            ": ", Clip(fact.reason(), kMaxClause)),
       .attempt = fact.attempt()},
      stamp, *job, draft);
  if (!fact.rolls_back()) return absl::OkStatus();
  LeaveHarmedCheckpoints(fact.rollback_step(), stamp, *job, draft);
  // A change of the recipe in the same update may begin where the next attempt does.
  CoverTimeline(*job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::RanksMoved& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.attempt()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("step", fact.step(), 0, kMaxSteps));
  for (v1::Placement& placement : *job->mutable_attempt()->mutable_placements()) {
    if (placement.worker() != fact.worker()) continue;
    // For live ranks, `detail` is the reason why they wait.
    const bool lives = MayMove(fact.phase(), v1::RANK_PHASE_FAILED);
    const bool other_trouble = lives && fact.detail() != placement.detail();
    const bool stays = fact.phase() == placement.phase() && other_trouble;
    if (!stays && !MayMove(placement.phase(), fact.phase())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "phase: ranks of ", fact.job(), " on ", fact.worker(), " are ",
          PhaseName(placement.phase()), " and cannot become ", PhaseName(fact.phase())));
    }
    placement.set_phase(fact.phase());
    placement.set_step(fact.step());
    placement.set_detail(fact.detail());
    placement.set_cause(fact.cause());
    if (other_trouble) {
      AddEvent({.kind = v1::JOB_EVENT_KIND_TROUBLE,
                .text = fact.detail().empty()
                            ? absl::StrCat("ranks on ", fact.worker(), " no longer wait")
                            : absl::StrCat("ranks on ", fact.worker(), ": ",
                                           Clip(fact.detail(), kMaxClause)),
                .attempt = fact.attempt(),
                .step = fact.step()},
               stamp, *job, draft);
    }
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("worker: attempt ", fact.attempt(), " of ", fact.job(),
                                          " has no ranks on '", fact.worker(), "'"));
}

absl::Status Apply(const v1::GuardDecided& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.attempt()));
  const v1::GuardDecision& decision = fact.decision();
  if (decision.guard().empty() || decision.action().empty()) {
    return absl::InvalidArgumentError("decision: guard or action is empty");
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("decision.step", decision.step(), 0, kMaxSteps));
  job->set_guarded_attempt(fact.attempt());
  job->set_guarded_steps(decision.step() + 1);
  AddEvent({.kind = IsSpike(decision) ? v1::JOB_EVENT_KIND_SPIKE : v1::JOB_EVENT_KIND_GUARD,
            .text = absl::StrCat("guard ", decision.guard(), " at step ", decision.step(), ": ",
                                 decision.action(), decision.detail().empty() ? "" : ": ",
                                 Clip(decision.detail(), kMaxClause)),
            .attempt = fact.attempt(),
            .step = decision.step()},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerBlamed& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  if (draft.workers.Find(fact.worker()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", fact.worker(), "'"));
  }
  auto& blames = *job->mutable_blames();
  auto blame = std::find_if(blames.begin(), blames.end(), [&fact](const v1::WorkerBlame& b) {
    return b.worker() == fact.worker();
  });
  if (blame == blames.end()) {
    // Drop the oldest: it is the least relevant one.
    if (blames.size() == kMaxBlames) blames.erase(blames.begin());
    blames.Add()->set_worker(fact.worker());
    blame = blames.end() - 1;
  }
  blame->set_failures(blame->failures() + 1);
  if (!fact.excluded() || blame->excluded()) return absl::OkStatus();
  blame->set_excluded(true);
  AddEvent({.kind = v1::JOB_EVENT_KIND_EXCLUDED,
            .text = absl::StrCat("worker ", fact.worker(),
                                 " is excluded: ", Clip(fact.reason(), kMaxClause)),
            .attempt = job->last_attempt()},
           stamp, *job, draft);
  return absl::OkStatus();
}

}  // namespace nibble::apply

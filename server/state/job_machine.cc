#include "server/state/job_machine.h"

#include <string>

#include "absl/strings/strip.h"

namespace nibble {
namespace {

absl::string_view WithoutPrefix(const std::string& name, absl::string_view prefix) {
  return name.empty() ? "UNKNOWN" : absl::StripPrefix(name, prefix);
}

}  // namespace

bool MayMove(v1::JobState from, v1::JobState to) {
  switch (from) {
    case v1::JOB_STATE_QUEUED:
      return to == v1::JOB_STATE_STARTING || to == v1::JOB_STATE_PAUSED ||
             to == v1::JOB_STATE_CANCELLED;
    case v1::JOB_STATE_STARTING:
      return to == v1::JOB_STATE_RUNNING || to == v1::JOB_STATE_RECOVERING ||
             to == v1::JOB_STATE_QUEUED || to == v1::JOB_STATE_FAILED ||
             to == v1::JOB_STATE_CANCELLED;
    case v1::JOB_STATE_RUNNING:
      return to == v1::JOB_STATE_SUCCEEDED || to == v1::JOB_STATE_FAILED ||
             to == v1::JOB_STATE_CANCELLED || to == v1::JOB_STATE_PAUSED ||
             to == v1::JOB_STATE_RECOVERING || to == v1::JOB_STATE_PREEMPTED;
    case v1::JOB_STATE_PAUSED:
      return to == v1::JOB_STATE_RUNNING || to == v1::JOB_STATE_QUEUED ||
             to == v1::JOB_STATE_CANCELLED;
    case v1::JOB_STATE_RECOVERING:
      return to == v1::JOB_STATE_RUNNING || to == v1::JOB_STATE_PAUSED ||
             to == v1::JOB_STATE_FAILED || to == v1::JOB_STATE_CANCELLED;
    case v1::JOB_STATE_PREEMPTED:
      return to == v1::JOB_STATE_QUEUED || to == v1::JOB_STATE_SUCCEEDED ||
             to == v1::JOB_STATE_FAILED || to == v1::JOB_STATE_CANCELLED;
    default:
      return false;
  }
}

bool IsFinished(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

NeedsAttempt AttemptIn(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_PREEMPTED:
      return NeedsAttempt::kAlways;
    case v1::JOB_STATE_PAUSED:
    case v1::JOB_STATE_RECOVERING:
      return NeedsAttempt::kEither;
    default:
      return NeedsAttempt::kNever;
  }
}

bool MayMove(v1::RankPhase from, v1::RankPhase to) {
  if (from != v1::RANK_PHASE_ASSIGNED && from != v1::RANK_PHASE_RUNNING &&
      from != v1::RANK_PHASE_PAUSED) {
    return false;
  }
  return to != from && to >= v1::RANK_PHASE_RUNNING && to <= v1::RANK_PHASE_FAILED;
}

bool TakesOnlyWeights(const v1::JobRecord& job, const v1::CheckpointRef& resume) {
  return job.origin().weights_only() && resume.job() != job.id();
}

int64_t FirstStep(const v1::JobRecord& job) {
  const v1::CheckpointRef& resume = job.attempt().resume();
  return TakesOnlyWeights(job, resume) ? 0 : resume.step();
}

absl::string_view StateName(v1::JobState state) {
  return WithoutPrefix(v1::JobState_Name(state), "JOB_STATE_");
}

absl::string_view PhaseName(v1::RankPhase phase) {
  return WithoutPrefix(v1::RankPhase_Name(phase), "RANK_PHASE_");
}

absl::string_view OutcomeName(v1::AttemptOutcome outcome) {
  return WithoutPrefix(v1::AttemptOutcome_Name(outcome), "ATTEMPT_OUTCOME_");
}

}  // namespace nibble

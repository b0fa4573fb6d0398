#include "server/state/entities.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace nibble {

std::string JobPrefix(absl::string_view job) { return absl::StrCat(job, "/"); }

std::string EventKey(absl::string_view job, int64_t number) {
  return absl::StrCat(job, "/", absl::Dec(number, absl::kZeroPad16));
}

std::string CheckpointKey(const v1::CheckpointRef& ref) {
  return absl::StrCat(ref.job(), "/", absl::Dec(ref.step(), absl::kZeroPad16), "/",
                      absl::Dec(ref.attempt(), absl::kZeroPad16));
}

std::string ShardPrefix(const v1::CheckpointRef& ref) {
  return absl::StrCat(CheckpointKey(ref), "/");
}

std::string ShardKey(const v1::CheckpointRef& ref, int32_t rank) {
  return absl::StrCat(ShardPrefix(ref), absl::Dec(rank, absl::kZeroPad5));
}

absl::string_view CheckpointOfShard(absl::string_view shard_key) {
  return shard_key.substr(0, shard_key.rfind('/'));
}

std::string RevisionKey(absl::string_view job, int64_t number) {
  return absl::StrCat(JobPrefix(job), absl::Dec(number, absl::kZeroPad20));
}

std::string RequestKey(absl::string_view author, absl::string_view request_id) {
  return absl::StrCat(author, "/", request_id);
}

std::string RemovalPrefix(absl::string_view worker) { return absl::StrCat(worker, "/"); }

std::string RemovalKey(absl::string_view worker, absl::string_view job) {
  return absl::StrCat(RemovalPrefix(worker), job);
}

std::string CheckpointText(const v1::CheckpointRef& ref) {
  return absl::StrCat("checkpoint of ", ref.job(), " at step ", ref.step(), " (attempt ",
                      ref.attempt(), ")");
}

std::string NotCommittedText(int64_t attempt) {
  return absl::StrCat("attempt ", attempt, " ended before it was committed");
}

namespace {

absl::string_view WithoutPrefix(const std::string& name, absl::string_view prefix) {
  return name.empty() ? "UNKNOWN" : absl::StripPrefix(name, prefix);
}

}  // namespace

bool MayMove(v1::JobState from, v1::JobState to) {
  switch (from) {
    case v1::JOB_STATE_QUEUED:
      return to == v1::JOB_STATE_STARTING || to == v1::JOB_STATE_PAUSED ||
             to == v1::JOB_STATE_FAILED || to == v1::JOB_STATE_CANCELLED;
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

namespace {

std::optional<NotifyEvent> OfState(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
      return NotifyEvent::kStarted;
    case v1::JOB_STATE_PAUSED:
      return NotifyEvent::kPaused;
    case v1::JOB_STATE_RECOVERING:
      return NotifyEvent::kRecovering;
    case v1::JOB_STATE_PREEMPTED:
      return NotifyEvent::kPreempted;
    case v1::JOB_STATE_SUCCEEDED:
      return NotifyEvent::kCompleted;
    case v1::JOB_STATE_FAILED:
      return NotifyEvent::kFailed;
    case v1::JOB_STATE_CANCELLED:
      return NotifyEvent::kCancelled;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<NotifyEvent> PostedAs(const v1::JobEvent& event) {
  switch (event.kind()) {
    case v1::JOB_EVENT_KIND_SUBMITTED:
      return NotifyEvent::kSubmitted;
    case v1::JOB_EVENT_KIND_MOVED:
      return OfState(event.to());
    case v1::JOB_EVENT_KIND_RECIPE:
      return NotifyEvent::kRecipeChanged;
    case v1::JOB_EVENT_KIND_CHECKPOINT:
      return NotifyEvent::kCheckpoint;
    case v1::JOB_EVENT_KIND_EXCLUDED:
      return NotifyEvent::kWorkerExcluded;
    case v1::JOB_EVENT_KIND_TROUBLE:
      return NotifyEvent::kTrouble;
    case v1::JOB_EVENT_KIND_SPIKE:
      return NotifyEvent::kSpike;
    case v1::JOB_EVENT_KIND_GUARD:
      return NotifyEvent::kGuard;
    case v1::JOB_EVENT_KIND_ALERT:
      return NotifyEvent::kAlert;
    default:
      return std::nullopt;
  }
}

bool IsSpike(const v1::GuardDecision& decision) {
  return decision.guard() == "spike" || decision.guard() == "gradient-norm";
}

bool Wants(const v1::NotifyTarget& target, const v1::JobEvent& event) {
  const std::optional<NotifyEvent> posted = PostedAs(event);
  if (!posted) return false;
  const std::string_view name = ChoiceName(*posted);
  return std::any_of(target.on().begin(), target.on().end(),
                     [name](const std::string& wanted) { return wanted == name; });
}

bool HasUnsettled(const v1::JobRecord& job) {
  return std::any_of(job.notify().begin(), job.notify().end(), [](const v1::NotifyTarget& target) {
    return target.wanted_event() > target.settled_event();
  });
}

}  // namespace nibble

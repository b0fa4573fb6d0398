#include "server/state/views.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/state/entities.h"
#include "server/state/job_uploads.h"

namespace nibble {
namespace {

int64_t StepAtSuccess(const v1::JobRecord& job) {
  if (job.recent_attempts().empty()) return job.shape().steps();
  const v1::Attempt& last = *job.recent_attempts().rbegin();
  const bool early = absl::StartsWith(last.reason(), kStoppedEarly) && !last.placements().empty();
  return early ? last.placements(0).step() : job.shape().steps();
}

// The reasons why ranks wait, by worker; each text once.
std::string TroubleOf(const v1::Attempt& attempt) {
  std::set<std::string> troubles;
  for (const v1::Placement& placement : attempt.placements()) {
    const bool lives = MayMove(placement.phase(), v1::RANK_PHASE_FAILED);
    if (lives && !placement.detail().empty()) {
      troubles.insert(absl::StrCat(placement.worker(), ": ", placement.detail()));
    }
  }
  return absl::StrJoin(troubles, "; ");
}

}  // namespace

v1::JobUploads ViewUploads(const State& state, const v1::JobRecord& job) {
  v1::JobUploads view = job.uploads();
  if (view.failures() > 0 && !view.has_open() && state.NewestGood(job.id()) != nullptr) {
    view.set_retry_unix_ms(view.failed_unix_ms() + UploadPauseMs(view.failures()));
  }
  return view;
}

v1::Job ViewJob(const State& state, const v1::JobRecord& job, const LiveProgress& live,
                absl::string_view pending) {
  v1::Job view;
  view.set_id(job.id());
  view.set_name(job.name());
  view.set_owner(job.owner());
  *view.mutable_scheduling() = job.scheduling();
  *view.mutable_restart_policy() = job.restart_policy();
  *view.mutable_shape() = job.shape();
  if (job.has_origin()) *view.mutable_origin() = job.origin();
  view.set_state(job.state());
  const bool waits = !IsFinished(job.state()) && !job.has_attempt() &&
                     job.state() != v1::JOB_STATE_PAUSED && !pending.empty();
  view.set_state_reason(waits ? std::string(pending) : job.state_reason());
  view.set_state_since_unix_ms(job.state_since_unix_ms());
  view.set_state_author(job.state_author());
  view.set_goal(job.goal());
  view.set_submitted_unix_ms(job.submitted_unix_ms());
  view.set_finished_unix_ms(job.finished_unix_ms());
  if (job.has_attempt()) *view.mutable_attempt() = job.attempt();
  view.set_trouble(TroubleOf(job.attempt()));
  view.set_attempts(job.last_attempt());
  *view.mutable_recent_attempts() = job.recent_attempts();
  view.set_restarts_without_progress(job.restarts_without_progress());
  view.set_not_before_unix_ms(job.not_before_unix_ms());
  *view.mutable_blames() = job.blames();
  *view.mutable_notify() = job.notify();
  if (job.has_uploads()) *view.mutable_uploads() = ViewUploads(state, job);
  *view.mutable_alerts() = job.alerts();
  const v1::TimelineRecord& timeline = *state.FindTimeline(job.id());
  view.set_latest_revision(timeline.revisions().rbegin()->number());
  view.set_revision_in_force(timeline.in_force());
  const v1::Checkpoint* const newest = state.NewestGood(job.id());
  view.set_checkpoint_step(newest == nullptr ? -1 : newest->ref().step());
  int64_t next_step =
      job.state() == v1::JOB_STATE_SUCCEEDED ? StepAtSuccess(job) : state.EarliestStep(job);
  if (job.has_attempt() && live.attempt == job.attempt().number()) {
    next_step = std::max(next_step, live.next_step);
  }
  view.set_next_step(next_step);
  return view;
}

v1::Worker ViewWorker(const State& state, const v1::WorkerRecord& worker) {
  v1::Worker view;
  *view.mutable_identity() = worker.identity();
  view.set_mode(worker.mode());
  view.set_mode_reason(worker.mode_reason());
  view.set_present(worker.present());
  view.set_present_since_unix_ms(worker.present_since_unix_ms());
  *view.mutable_flags() = worker.flags();
  int32_t used = 0;
  for (const std::string& job : state.index().GangsOn(worker.identity().name())) {
    view.add_jobs(job);
    for (const v1::Placement& placement : state.FindJob(job)->attempt().placements()) {
      if (placement.worker() == worker.identity().name()) used += placement.slots_size();
    }
  }
  view.set_used_slots(used);
  return view;
}

v1::QueueUsage ViewUsage(const State& state, const std::string& queue) {
  v1::QueueUsage usage;
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if (job.scheduling().queue() != queue) continue;
    if (job.has_attempt()) {
      usage.set_running_jobs(usage.running_jobs() + 1);
      usage.set_used_slots(usage.used_slots() + job.attempt().world());
    } else if (job.state() != v1::JOB_STATE_PAUSED) {
      usage.set_waiting_jobs(usage.waiting_jobs() + 1);
    }
  }
  return usage;
}

absl::StatusOr<v1::CheckpointRef> FindCheckpoint(const State& state, const v1::CheckpointRef& ref,
                                                 absl::string_view field) {
  const v1::JobRecord* const job = state.FindJob(ref.job());
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat(field, ".job: there is no '", ref.job(), "'"));
  }
  const v1::Checkpoint* best = nullptr;
  for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(ref.job())) {
    if (checkpoint->state() == v1::CHECKPOINT_STATE_WRITING) continue;
    if (ref.attempt() != 0 && checkpoint->ref().attempt() != ref.attempt()) continue;
    const bool good = checkpoint->state() == v1::CHECKPOINT_STATE_COMMITTED;
    if (ref.step() == -1) {
      if (good) best = checkpoint;
      continue;
    }
    if (checkpoint->ref().step() != ref.step()) continue;
    if (good || best == nullptr || best->state() == v1::CHECKPOINT_STATE_DAMAGED) best = checkpoint;
  }
  if (best != nullptr) return best->ref();
  const int64_t attempts = job->last_attempt();
  if (ref.attempt() < 0 || ref.attempt() > attempts) {
    return absl::NotFoundError(absl::StrCat(field, ".attempt: there is no ", ref.attempt(), " of ",
                                            ref.job(), ", which has had ", attempts,
                                            "; 0 means any"));
  }
  const std::string which = ref.attempt() == 0 ? "" : absl::StrCat(" of attempt ", ref.attempt());
  if (ref.step() == -1) {
    return absl::NotFoundError(
        absl::StrCat(field, ": ", ref.job(), " has no good checkpoint", which));
  }
  return absl::NotFoundError(absl::StrCat(
      field, ": ", ref.job(), " has no committed checkpoint at step ", ref.step(), which));
}

bool IsOfProjects(const std::vector<std::string>& projects, const v1::JobRecord& job) {
  return projects.empty() ||
         std::find(projects.begin(), projects.end(), job.scheduling().project()) != projects.end();
}

}  // namespace nibble

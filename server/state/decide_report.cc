#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using decide::Failure;
using decide::kGuardAuthor;

constexpr char kAllRanksRun[] = "every rank runs";
// Of guards' decisions.
constexpr char kRollBackAction[] = "roll_back";

// The number of an attempt's workers whose ranks are in each phase, with one worker's phase
// replaced by the one it now reports.
struct PhaseCount {
  int all = 0;
  int assigned = 0;
  int running = 0;
  int paused = 0;
  int stopped = 0;
  int succeeded = 0;
};

PhaseCount Count(const v1::Attempt& attempt, const std::string& worker, v1::RankPhase phase) {
  PhaseCount count;
  for (const v1::Placement& placement : attempt.placements()) {
    ++count.all;
    switch (placement.worker() == worker ? phase : placement.phase()) {
      case v1::RANK_PHASE_ASSIGNED:
        ++count.assigned;
        break;
      case v1::RANK_PHASE_RUNNING:
        ++count.running;
        break;
      case v1::RANK_PHASE_PAUSED:
        ++count.paused;
        break;
      case v1::RANK_PHASE_STOPPED:
        ++count.stopped;
        break;
      case v1::RANK_PHASE_SUCCEEDED:
        ++count.succeeded;
        break;
      default:
        break;
    }
  }
  return count;
}

absl::StatusOr<const v1::Placement*> FindPlacement(const v1::JobRecord& job,
                                                   const std::string& worker, int64_t incarnation,
                                                   int64_t attempt) {
  if (!job.has_attempt() || job.attempt().number() != attempt) {
    return absl::AbortedError(absl::StrCat(
        "attempt: ", attempt, " of ", job.id(),
        attempt > job.last_attempt() ? " was never launched; the latest is "
                                     : " is over; the latest is ",
        job.last_attempt(), job.has_attempt() ? ", which is live" : ", which is over, too"));
  }
  for (const v1::Placement& placement : job.attempt().placements()) {
    if (placement.worker() != worker) continue;
    if (placement.incarnation() == incarnation) return &placement;
    return absl::AbortedError(absl::StrCat("incarnation: ", incarnation, " of worker ", worker,
                                           " has no ranks of ", job.id(), "; incarnation ",
                                           placement.incarnation(), " has"));
  }
  return absl::NotFoundError(absl::StrCat("worker: attempt ", attempt, " of ", job.id(),
                                          " has no ranks on '", worker, "'"));
}

// Adds confirmations of the revisions that the attempt has run and the state has not confirmed yet.
void AddConfirmations(const State& state, const v1::GangReport& report, v1::Update& update) {
  const v1::TimelineRecord& timeline = *state.FindTimeline(report.job());
  struct Known {
    int64_t first_step = 0;
    bool confirmed = false;
  };
  std::map<int64_t, Known> all;
  for (const v1::RecipeRevision& revision : timeline.revisions()) {
    if (!revision.refused().empty()) continue;
    all[revision.number()] = {revision.first_step(), revision.confirmed()};
  }
  // Superseded while ranks switched to them: ranks have run them anyway.
  for (const v1::RecipeRevision& revision : timeline.retired()) {
    all[revision.number()] = {revision.first_step(), false};
  }
  // Steps before this one come from the checkpoint.
  const int64_t begins = FirstStep(*state.FindJob(report.job()));
  const int last = report.revisions_size() - 1;
  for (int i = 0; i <= last; ++i) {
    const v1::RevisionStart& start = report.revisions(i);
    const auto known = all.find(start.revision());
    // It belongs to an abandoned timeline of an earlier attempt. If a store was restored since,
    // that one may have had another revision with this number.
    if (known == all.end()) continue;
    if (start.first_step() < std::min(known->second.first_step, begins)) continue;
    const bool changed =
        !known->second.confirmed || (i == last && start.revision() != timeline.in_force());
    if (!changed) continue;
    v1::RevisionConfirmed& fact = *update.add_facts()->mutable_revision_confirmed();
    fact.set_job(report.job());
    fact.set_attempt(report.attempt());
    fact.set_revision(start.revision());
    fact.set_first_step(start.first_step());
  }
}

// Adds refusals of the revisions that ranks could not prepare and the state does not know of yet.
void AddRefusals(const State& state, const v1::GangReport& report, v1::Update& update) {
  const v1::TimelineRecord& timeline = *state.FindTimeline(report.job());
  std::set<int64_t> open;
  for (const v1::RecipeRevision& revision : timeline.revisions()) {
    if (revision.refused().empty()) open.insert(revision.number());
  }
  for (const v1::RecipeRevision& revision : timeline.retired()) open.insert(revision.number());
  for (const v1::RefusedRevision& refused : report.refused()) {
    if (open.erase(refused.revision()) == 0) continue;
    v1::RevisionRefused& fact = *update.add_facts()->mutable_revision_refused();
    fact.set_job(report.job());
    fact.set_attempt(report.attempt());
    fact.set_revision(refused.revision());
    fact.set_reason(refused.reason());
  }
}

// Adds the decisions of guards that the state does not know of yet. An attempt that runs steps
// again makes their decisions again, which are then recorded again.
void AddDecisions(const v1::JobRecord& job, const v1::GangReport& report, v1::Update& update) {
  const int64_t known = job.guarded_attempt() == report.attempt() ? job.guarded_steps() : 0;
  for (const v1::GuardDecision& decision : report.decided()) {
    if (decision.step() < known) continue;
    v1::GuardDecided& fact = *update.add_facts()->mutable_guard_decided();
    fact.set_job(report.job());
    fact.set_attempt(report.attempt());
    *fact.mutable_decision() = decision;
    fact.mutable_decision()->set_detail(OneLine(decision.detail()));
  }
}

// Why the ranks succeeded before `step`.
std::string SuccessReason(const State& state, const v1::JobRecord& job, int64_t step) {
  constexpr char kDone[] = "every step is done";
  if (step >= job.shape().steps()) return kDone;
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(state.FindSpec(job.id())->spec_yaml());
  if (!spec.ok() || spec->early_stop.patience == 0) return kDone;
  return absl::StrCat(kStoppedEarly, " before step ", step, " of ", job.shape().steps(),
                      ": the validation loss no longer improves");
}

// Adds the moves of the job that follow from the phases of its ranks.
void AddConsequences(const State& state, const v1::JobRecord& job, const PhaseCount& count,
                     int64_t step, v1::Update& update) {
  v1::JobState at = job.state();
  const auto move = [&](v1::JobState to, const std::string& reason) {
    decide::Move(job.id(), at, to, reason, update);
    at = to;
  };
  if (count.assigned > 0) return;
  if (count.stopped > 0 && count.stopped + count.succeeded == count.all) {
    decide::AddStop(job, absl::StrCat("stopped as requested before step ", step), update);
    return;
  }
  if (at == v1::JOB_STATE_STARTING || at == v1::JOB_STATE_RECOVERING) {
    move(v1::JOB_STATE_RUNNING, kAllRanksRun);
  }
  if (count.succeeded == count.all) {
    if (at == v1::JOB_STATE_PAUSED)
      move(v1::JOB_STATE_RUNNING, "resumed and finished the last step");
    const std::string reason = SuccessReason(state, job, step);
    decide::End(job, v1::ATTEMPT_OUTCOME_SUCCEEDED, reason, update);
    move(v1::JOB_STATE_SUCCEEDED, reason);
  } else if (count.paused == count.all) {
    if (at == v1::JOB_STATE_RUNNING && job.goal() == v1::JOB_GOAL_PAUSE) {
      move(v1::JOB_STATE_PAUSED, absl::StrCat("paused before step ", step));
    }
  } else if (count.running == count.all) {
    if (at == v1::JOB_STATE_PAUSED && job.goal() != v1::JOB_GOAL_PAUSE) {
      move(v1::JOB_STATE_RUNNING, absl::StrCat("resumed at step ", step));
    }
  }
}

bool HasFailed(v1::RankPhase phase) { return phase == v1::RANK_PHASE_FAILED; }
bool Lives(v1::RankPhase phase) {
  return phase == v1::RANK_PHASE_ASSIGNED || phase == v1::RANK_PHASE_RUNNING ||
         phase == v1::RANK_PHASE_PAUSED;
}
bool IsGuards(v1::FailureCause cause) {
  return cause == v1::FAILURE_CAUSE_GUARD_PAUSE || cause == v1::FAILURE_CAUSE_GUARD_ROLLBACK ||
         cause == v1::FAILURE_CAUSE_GUARD_FAIL;
}

// Whether ranks on any other worker are in such a phase.
bool AnyElsewhere(const v1::Attempt& attempt, const std::string& worker,
                  bool (*is)(v1::RankPhase)) {
  return std::any_of(attempt.placements().begin(), attempt.placements().end(),
                     [&](const v1::Placement& placement) {
                       return placement.worker() != worker && is(placement.phase());
                     });
}

// The decision with which the ranks of a report ended for a rollback, from all guards that asked
// for it. Older workers do not report what it found: then it is that of the next step.
v1::GuardDecision RollbackOf(const v1::GangReport& report) {
  v1::GuardDecision found;
  found.set_step(report.next_step());
  for (const v1::GuardDecision& decision : report.decided()) {
    if (decision.action() != kRollBackAction) continue;
    if (found.guard().empty() || decision.step() != found.step()) {
      found = decision;
      continue;
    }
    found.set_harmed_steps(std::max(found.harmed_steps(), decision.harmed_steps()));
    found.mutable_layers()->MergeFrom(decision.layers());
  }
  return found;
}

// The failure with which a report ends the attempt, if it does. Ranks that lost a peer on another
// worker do not end it while others live: either the ranks at fault report, or the lease of their
// worker expires. A rollback awaits the worker of rank 0, which reports what the guard found.
std::optional<Failure> FailureOf(const v1::JobRecord& job, const std::string& worker,
                                 const v1::GangReport& report) {
  const v1::Attempt& attempt = job.attempt();
  const bool others_live = AnyElsewhere(attempt, worker, Lives);
  const std::string detail = report.detail().empty() ? "" : absl::StrCat(": ", report.detail());
  if (HasFailed(report.phase())) {
    if (report.cause() == v1::FAILURE_CAUSE_PEER && others_live) return std::nullopt;
    const v1::Placement& first = attempt.placements(0);
    const bool rolls_back = report.cause() == v1::FAILURE_CAUSE_GUARD_ROLLBACK;
    if (rolls_back && first.worker() != worker && Lives(first.phase())) return std::nullopt;
    const bool spec = report.cause() == v1::FAILURE_CAUSE_SPEC || IsGuards(report.cause());
    return Failure{.cause = report.cause(),
                   .worker = worker,
                   .reason = spec && !detail.empty()
                                 ? absl::StrCat(report.detail(), " (on worker ", worker, ")")
                                 : absl::StrCat("ranks on ", worker, " failed", detail),
                   .decision = rolls_back ? RollbackOf(report) : v1::GuardDecision()};
  }
  if (report.phase() == v1::RANK_PHASE_STOPPED && !attempt.stopping()) {
    return Failure{
        .worker = worker,
        .reason = absl::StrCat("ranks on ", worker, " stopped without a request", detail)};
  }
  if (Lives(report.phase()) || others_live) return std::nullopt;
  for (const v1::Placement& placement : attempt.placements()) {
    if (placement.worker() == worker || !HasFailed(placement.phase())) continue;
    return Failure{
        .cause = v1::FAILURE_CAUSE_PEER,
        .reason = absl::StrCat("ranks on ", placement.worker(), " failed: ", placement.detail())};
  }
  return std::nullopt;
}

}  // namespace

MaybeUpdate DecideGangReport(const State& state, const std::string& worker, int64_t incarnation,
                             const v1::GangReport& report, const Caller& caller) {
  NIBBLE_RETURN_IF_ERROR(CheckBounds(report));
  const v1::JobRecord* const job = state.FindJob(report.job());
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("job: there is no '", report.job(), "'"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::Placement* const placement,
                          FindPlacement(*job, worker, incarnation, report.attempt()));
  v1::Update update = decide::NextUpdate(state, caller);
  // Before the confirmations: refusals decide which revisions ranks have passed over.
  AddRefusals(state, report, update);
  AddConfirmations(state, report, update);
  AddDecisions(*job, report, update);
  // A report without changes makes no update: reports come every second.
  const bool lives = Lives(report.phase());
  const std::string trouble = lives ? OneLine(report.trouble()) : "";
  const bool same_phase = report.phase() == placement->phase();
  if (same_phase && (!lives || trouble == placement->detail())) {
    return decide::Checked(state, std::move(update));
  }
  v1::RanksMoved& moved = *update.add_facts()->mutable_ranks_moved();
  moved.set_job(report.job());
  moved.set_attempt(report.attempt());
  moved.set_worker(worker);
  moved.set_phase(report.phase());
  moved.set_step(report.next_step());
  moved.set_detail(lives ? trouble : report.detail());
  moved.set_cause(report.cause());
  if (same_phase) return decide::Checked(state, std::move(update));
  const std::optional<Failure> failure = FailureOf(*job, worker, report);
  if (failure.has_value()) {
    if (IsGuards(failure->cause)) update.set_author(kGuardAuthor);
    decide::AddFailure(state, *job, *failure, update);
  } else if (!AnyElsewhere(job->attempt(), worker, HasFailed)) {
    AddConsequences(state, *job, Count(job->attempt(), worker, report.phase()), report.next_step(),
                    update);
  }
  return decide::Checked(state, std::move(update));
}

namespace {

// PermissionDenied: the shard is of a live attempt, and its rank runs on another worker. Whoever
// reports a shard first says what its bytes are.
absl::Status CheckFirstHolder(const State& state, const std::string& worker,
                              const v1::ShardReport& report) {
  const v1::JobRecord* const job = state.FindJob(report.ref().job());
  if (job == nullptr || !job->has_attempt() || job->attempt().number() != report.ref().attempt()) {
    return absl::OkStatus();
  }
  for (const v1::Placement& placement : job->attempt().placements()) {
    const bool runs_it = placement.first_rank() <= report.rank() &&
                         report.rank() < placement.first_rank() + placement.slots_size();
    if (!runs_it || placement.worker() == worker) continue;
    return absl::PermissionDeniedError(absl::StrCat(
        "worker: '", worker, "' reports the shard of rank ", report.rank(), " of the ",
        CheckpointText(report.ref()), " before ", placement.worker(), ", which runs that rank"));
  }
  return absl::OkStatus();
}

}  // namespace

MaybeUpdate DecideShardReport(const State& state, const std::string& worker,
                              const v1::ShardReport& report, const Caller& caller) {
  NIBBLE_RETURN_IF_ERROR(CheckBounds(report));
  v1::Update update = decide::NextUpdate(state, caller);
  const v1::Checkpoint* const checkpoint = state.FindCheckpoint(report.ref());
  const v1::CheckpointShard* const known = state.FindShard(report.ref(), report.rank());
  const auto is_holder = [&] {
    return std::find(known->holders().begin(), known->holders().end(), worker) !=
           known->holders().end();
  };
  const bool same = known != nullptr && known->manifest_crc32c() == report.manifest_crc32c() &&
                    known->bytes() == report.bytes();
  if (same && is_holder()) return std::nullopt;
  if (same && checkpoint->state() != v1::CHECKPOINT_STATE_WRITING) {
    v1::ShardHolderSet& holder = *update.add_facts()->mutable_shard_holder_set();
    *holder.mutable_ref() = report.ref();
    holder.set_rank(report.rank());
    holder.set_worker(worker);
    holder.set_held(true);
    return decide::Checked(state, std::move(update));
  }
  if (known == nullptr) NIBBLE_RETURN_IF_ERROR(CheckFirstHolder(state, worker, report));
  v1::ShardStored& stored = *update.add_facts()->mutable_shard_stored();
  *stored.mutable_ref() = report.ref();
  stored.set_rank(report.rank());
  stored.set_world(report.world());
  stored.set_bytes(report.bytes());
  stored.set_manifest_crc32c(report.manifest_crc32c());
  stored.set_worker(worker);
  const int32_t durable = checkpoint == nullptr ? 0 : checkpoint->durable_shards();
  if (known == nullptr && durable + 1 == report.world()) {
    *update.add_facts()->mutable_checkpoint_committed()->mutable_ref() = report.ref();
  }
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideShardInventory(const State& state, const std::string& worker,
                                 const std::vector<v1::ShardReport>& shards, const Caller& caller,
                                 int64_t most_facts) {
  std::set<std::string> there;
  for (const v1::ShardReport& shard : shards) there.insert(ShardKey(shard.ref(), shard.rank()));
  v1::Update update = decide::NextUpdate(state, caller);
  const v1::Checkpoint* given_up = nullptr;  // marked as damaged by this update
  for (const std::string& key : state.index().ShardsOn(worker)) {
    if (there.contains(key)) continue;
    const v1::CheckpointShard& shard = *FindIn(state.tables().shards, key);
    const v1::Checkpoint& checkpoint = *FindIn(state.tables().checkpoints, CheckpointOfShard(key));
    if (checkpoint.state() == v1::CHECKPOINT_STATE_WRITING) continue;
    v1::ShardHolderSet& holder = *update.add_facts()->mutable_shard_holder_set();
    *holder.mutable_ref() = checkpoint.ref();
    holder.set_rank(shard.rank());
    holder.set_worker(worker);
    // No other worker, present or absent, stores it: no attempt can resume from this checkpoint.
    if (checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED && &checkpoint != given_up &&
        shard.holders_size() == 1) {
      given_up = &checkpoint;
      v1::CheckpointDamaged& damaged = *update.add_facts()->mutable_checkpoint_damaged();
      *damaged.mutable_ref() = checkpoint.ref();
      damaged.set_detail(absl::StrCat("the shard of rank ", shard.rank(), " is lost: ", worker,
                                      ", its only holder, no longer stores it"));
    }
    if (update.facts_size() + 2 > most_facts) break;
  }
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideDamage(const State& state, const v1::DamagedShard& damage, const Caller& caller) {
  NIBBLE_RETURN_IF_ERROR(CheckBounds(damage));
  const v1::Checkpoint* const checkpoint = state.FindCheckpoint(damage.ref());
  const v1::CheckpointShard* const shard = state.FindShard(damage.ref(), damage.rank());
  if (checkpoint == nullptr || shard == nullptr ||
      checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED ||
      std::find(shard->holders().begin(), shard->holders().end(), damage.holder()) ==
          shard->holders().end()) {
    return std::nullopt;
  }
  v1::Update update = decide::NextUpdate(state, caller);
  if (shard->holders_size() > 1) {
    v1::ShardHolderSet& holder = *update.add_facts()->mutable_shard_holder_set();
    *holder.mutable_ref() = damage.ref();
    holder.set_rank(damage.rank());
    holder.set_worker(damage.holder());
  } else {
    // Keep the holder: a damaged shard may still be useful to an operator.
    v1::CheckpointDamaged& damaged = *update.add_facts()->mutable_checkpoint_damaged();
    *damaged.mutable_ref() = damage.ref();
    damaged.set_detail(OneLine(absl::StrCat("the only copy of the shard of rank ", damage.rank(),
                                            ", on ", damage.holder(), ": ", damage.detail())));
  }
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideTaskReport(const State& state, const std::string& worker,
                             const v1::TaskReport& report, const Caller& caller) {
  NIBBLE_RETURN_IF_ERROR(CheckBounds(report));
  const v1::Checkpoint* const checkpoint = state.FindCheckpoint(report.ref());
  if (checkpoint == nullptr) {
    return absl::NotFoundError(absl::StrCat("ref: there is no ", CheckpointText(report.ref())));
  }
  for (const v1::CheckpointTask& task : checkpoint->tasks()) {
    if (task.number() != report.task()) continue;
    // Duplicate report: keep the first result.
    if (task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED) return std::nullopt;
    v1::Update update = decide::NextUpdate(state, caller);
    v1::CheckpointTaskSet& set = *update.add_facts()->mutable_checkpoint_task_set();
    *set.mutable_ref() = report.ref();
    *set.mutable_task() = task;
    set.mutable_task()->set_state(report.state());
    set.mutable_task()->set_worker(worker);
    set.mutable_task()->set_detail(report.detail());
    set.mutable_task()->set_ended_unix_ms(update.time_unix_ms());
    if (report.damaged()) {
      v1::CheckpointDamaged& damaged = *update.add_facts()->mutable_checkpoint_damaged();
      *damaged.mutable_ref() = report.ref();
      damaged.set_detail(report.detail());
    }
    return decide::Checked(state, std::move(update));
  }
  return absl::NotFoundError(
      absl::StrCat("task: there is no ", report.task(), " of the ", CheckpointText(report.ref())));
}

MaybeUpdate DecideSettled(const State& state, const std::vector<v1::PostsSettled>& settled,
                          const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  for (const v1::PostsSettled& one : settled) {
    const v1::JobRecord* const job = state.FindJob(one.job());
    if (job == nullptr || one.target() >= job->notify_size()) continue;
    if (one.through_event() <= job->notify(one.target()).settled_event()) continue;
    *update.add_facts()->mutable_posts_settled() = one;
  }
  return decide::Checked(state, std::move(update));
}

const v1::JobAlert* FindAlert(const v1::JobRecord& job, const std::string& name) {
  const auto at = std::find_if(job.alerts().begin(), job.alerts().end(),
                               [&name](const v1::JobAlert& alert) { return alert.name() == name; });
  return at == job.alerts().end() ? nullptr : &*at;
}

MaybeUpdate DecideAlerts(const State& state, const std::vector<v1::AlertChanged>& changes,
                         const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  std::map<std::string, int64_t> firing;  // by job, with the changes so far
  for (const v1::AlertChanged& change : changes) {
    const v1::JobRecord* const job = state.FindJob(change.job());
    if (job == nullptr) continue;
    const bool fires = change.alert().ends_unix_ms() == 0;
    if (fires == (FindAlert(*job, change.alert().name()) != nullptr)) continue;
    int64_t& count = firing.try_emplace(job->id(), job->alerts_size()).first->second;
    if (fires && count >= kMaxAlerts) continue;
    count += fires ? 1 : -1;
    *update.add_facts()->mutable_alert_changed() = change;
  }
  return decide::Checked(state, std::move(update));
}

}  // namespace nibble

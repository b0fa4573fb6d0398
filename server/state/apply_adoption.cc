// What a lost or restored store adopts from its workers, and the orphans that it has them remove
// (docs/decisions/0008-whose-store.md).
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

void AddAdopted(const std::string& text, const std::string& reason, int64_t attempt, int64_t step,
                const Stamp& stamp, v1::JobRecord& job, Draft& draft) {
  AddEvent({.kind = v1::JOB_EVENT_KIND_ADOPTED,
            .text = absl::StrCat(text, reason.empty() ? "" : ": ", Clip(reason, kMaxClause)),
            .attempt = attempt,
            .step = step},
           stamp, job, draft);
}

// Adopts the workers' timeline if it has later revisions: ranks have run, or will run, under them.
absl::Status TakeTimeline(const RevisionMessages& revisions, const v1::JobRecord& job,
                          Draft& draft) {
  const v1::TimelineRecord& known = *draft.timelines.Find(job.id());
  if (revisions.empty() || revisions.rbegin()->number() <= known.revisions().rbegin()->number()) {
    return absl::OkStatus();
  }
  NIBBLE_RETURN_IF_ERROR(CheckRevisions(revisions));
  v1::TimelineRecord& timeline = *draft.timelines.Edit(job.id());
  *timeline.mutable_revisions() = revisions;
  timeline.clear_retired();
  const auto in_force = std::find_if(
      revisions.begin(), revisions.end(),
      [&](const v1::RecipeRevision& revision) { return revision.number() == timeline.in_force(); });
  if (in_force == revisions.end()) timeline.set_in_force(0);
  return absl::OkStatus();
}

// Whether the checkpoint belongs to an abandoned history: a later attempt has a checkpoint at the
// same or an earlier step, so it began before this one.
bool WasLeft(const v1::CheckpointRef& ref, const Draft& draft) {
  for (const auto& [key, other] : draft.checkpoints.WithPrefix(JobPrefix(ref.job()))) {
    if (other->ref().attempt() > ref.attempt() && other->ref().step() <= ref.step() &&
        other->state() != v1::CHECKPOINT_STATE_WRITING) {
      return true;
    }
  }
  return false;
}

void LeaveForEarlier(const v1::CheckpointRef& ref, Draft& draft) {
  for (const auto& [key, other] : draft.checkpoints.WithPrefix(JobPrefix(ref.job()))) {
    if (other->ref().attempt() < ref.attempt() && other->ref().step() >= ref.step() &&
        !other->left()) {
      draft.checkpoints.Edit(key)->set_left(true);
    }
  }
}

absl::Status CheckAdopted(const v1::CheckpointAdopted& fact, const v1::JobRecord& job,
                          const Draft& draft) {
  const v1::Checkpoint& checkpoint = fact.checkpoint();
  const v1::CheckpointRef& ref = checkpoint.ref();
  NIBBLE_RETURN_IF_ERROR(CheckRange("ref.step", ref.step(), 0, job.shape().steps()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("ref.attempt", ref.attempt(), 1, job.last_attempt()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("world", checkpoint.world(), 1, kMaxRanks));
  if (fact.shards_size() != checkpoint.world()) {
    return absl::InvalidArgumentError(absl::StrCat("shards: ", fact.shards_size(), " of a ",
                                                   CheckpointText(ref), " that has ",
                                                   checkpoint.world()));
  }
  for (int32_t rank = 0; rank < checkpoint.world(); ++rank) {
    const v1::CheckpointShard& shard = fact.shards(rank);
    if (shard.rank() != rank || shard.holders().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("shards: entry ", rank, " has rank ",
                                                     shard.rank(), ", with ",
                                                     Counted(shard.holders_size(), "holder")));
    }
    NIBBLE_RETURN_IF_ERROR(CheckRange("bytes", shard.bytes(), 0, kMaxCount / kMaxRanks));
    for (const std::string& holder : shard.holders()) {
      if (draft.workers.Find(holder) == nullptr) {
        return absl::NotFoundError(absl::StrCat("holders: there is no worker '", holder, "'"));
      }
    }
  }
  const size_t count = draft.checkpoints.WithPrefix(JobPrefix(job.id())).size();
  if (static_cast<int64_t>(count) >= kMaxCheckpointsPerJob) {
    return absl::ResourceExhaustedError(absl::StrCat("checkpoints: job ", job.id(), " has ", count,
                                                     "; at most ", kMaxCheckpointsPerJob));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Apply(const v1::JobAdopted& fact, const Stamp& stamp, Draft& draft) {
  const v1::JobRecord& adopted = fact.job();
  NIBBLE_RETURN_IF_ERROR(CheckName("job", adopted.id()));
  NIBBLE_RETURN_IF_ERROR(CheckName("name", adopted.name()));
  if (draft.jobs.Find(adopted.id()) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("job: '", adopted.id(), "' is already known"));
  }
  v1::ClusterRecord* const cluster = draft.cluster.Edit(kOnlyKey);
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("number", adopted.number(), cluster->next_job_number(), kMaxCount - 1));
  if (adopted.id() == absl::StrCat(adopted.name(), "-", adopted.number())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "number: ", adopted.number(), " is part of the id '", adopted.id(), "' of an adopted job"));
  }
  if (draft.UnfinishedJobs() >= kMaxUnfinishedJobs) {
    return absl::ResourceExhaustedError(absl::StrCat("jobs: ", draft.UnfinishedJobs(),
                                                     " are unfinished; at most ",
                                                     kMaxUnfinishedJobs, " are allowed"));
  }
  if (fact.spec_yaml().empty()) return absl::InvalidArgumentError("spec_yaml: is empty");
  NIBBLE_RETURN_IF_ERROR(CheckRange("last_attempt", adopted.last_attempt(), 0, kMaxCount - 1));
  NIBBLE_RETURN_IF_ERROR(
      CheckPlan(adopted.scheduling(), adopted.restart_policy(), adopted.shape(), draft));
  NIBBLE_RETURN_IF_ERROR(CheckRevisions(fact.revisions()));
  cluster->set_next_job_number(adopted.number() + 1);
  draft.specs.Put(adopted.id()).set_spec_yaml(fact.spec_yaml());
  *draft.timelines.Put(adopted.id()).mutable_revisions() = fact.revisions();
  v1::JobRecord& job = draft.jobs.Put(adopted.id());
  job.set_id(adopted.id());
  job.set_number(adopted.number());
  job.set_name(adopted.name());
  job.set_owner(adopted.owner());
  *job.mutable_scheduling() = adopted.scheduling();
  *job.mutable_restart_policy() = adopted.restart_policy();
  *job.mutable_shape() = adopted.shape();
  job.set_last_attempt(adopted.last_attempt());
  job.set_state(v1::JOB_STATE_PAUSED);
  job.set_state_reason(
      absl::StrCat("adopted; `nibble job resume ", adopted.id(), "` continues it"));
  job.set_state_since_unix_ms(stamp.time_unix_ms);
  job.set_state_author(std::string(stamp.author));
  job.set_goal(v1::JOB_GOAL_PAUSE);
  job.set_goal_author(std::string(stamp.author));
  job.set_submitted_unix_ms(stamp.time_unix_ms);
  job.set_first_event(1);
  job.set_next_event(1);
  NIBBLE_RETURN_IF_ERROR(SetTargets(adopted.notify(), job));
  AddAdopted("adopted from its workers", fact.reason(), adopted.last_attempt(), -1, stamp, job,
             draft);
  for (const auto& [key, removal] : draft.removals.WithPrefix("")) {
    if (removal->job() == adopted.id()) draft.removals.Erase(key);
  }
  return absl::OkStatus();
}

absl::Status Apply(const v1::AttemptAdopted& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, fact.job()));
  const int64_t number = fact.attempt().number();
  const int64_t last = job->last_attempt();
  if (fact.living()) {
    // The state knows the attempt, live or ended; only its ranks' timeline may be newer.
    NIBBLE_RETURN_IF_ERROR(CheckRange("attempt.number", number, std::max<int64_t>(1, last), last));
    AddAdopted("took over its timeline from its ranks", fact.reason(), number, -1, stamp, *job,
               draft);
    return TakeTimeline(fact.revisions(), *job, draft);
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("attempt.number", number, last + 1, kMaxCount - 1));
  if (job->has_attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt: ", job->attempt().number(), " of ", fact.job(), " is still live"));
  }
  job->set_last_attempt(number);
  v1::Attempt ended = fact.attempt();
  ended.set_outcome(v1::ATTEMPT_OUTCOME_LOST);
  ended.set_reason(fact.reason());
  ended.set_ended_unix_ms(stamp.time_unix_ms);
  AddEnded(std::move(ended), *job);
  AddAdopted(absl::StrCat("attempts up to ", number, " adopted"), fact.reason(), number, -1, stamp,
             *job, draft);
  return TakeTimeline(fact.revisions(), *job, draft);
}

absl::Status Apply(const v1::CheckpointAdopted& fact, const Stamp& stamp, Draft& draft) {
  const v1::CheckpointRef& ref = fact.checkpoint().ref();
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, ref.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAdopted(fact, *job, draft));
  const std::string key = CheckpointKey(ref);
  if (draft.checkpoints.Find(key) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("ref: the ", CheckpointText(ref), " is known"));
  }
  draft.deletions.Erase(key);
  const bool left = WasLeft(ref, draft);
  v1::Checkpoint& checkpoint = draft.checkpoints.Put(key);
  *checkpoint.mutable_ref() = ref;
  checkpoint.set_state(v1::CHECKPOINT_STATE_COMMITTED);
  checkpoint.set_world(fact.checkpoint().world());
  checkpoint.set_durable_shards(fact.checkpoint().world());
  checkpoint.set_first_shard_unix_ms(stamp.time_unix_ms);
  checkpoint.set_committed_unix_ms(stamp.time_unix_ms);
  checkpoint.set_left(left);
  int64_t bytes = 0;
  for (const v1::CheckpointShard& shard : fact.shards()) {
    draft.shards.Put(ShardKey(ref, shard.rank())) = shard;
    bytes += shard.bytes();
  }
  checkpoint.set_bytes(bytes);
  LeaveForEarlier(ref, draft);
  // Training got this far, so earlier failures do not count as failures without progress.
  if (!left) job->set_restarts_without_progress(0);
  AddAdopted(absl::StrCat("the ", CheckpointText(ref), " adopted: ",
                          Counted(checkpoint.world(), "shard"), ", ", Counted(bytes, "byte")),
             fact.reason(), ref.attempt(), ref.step(), stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::OrphanRemovalSet& fact, const Stamp& stamp, Draft& draft) {
  const v1::OrphanRemoval& removal = fact.removal();
  NIBBLE_RETURN_IF_ERROR(CheckName("worker", removal.worker()));
  NIBBLE_RETURN_IF_ERROR(CheckName("job", removal.job()));
  const std::string key = RemovalKey(removal.worker(), removal.job());
  if (fact.done()) {
    if (draft.removals.Find(key) == nullptr) {
      return absl::NotFoundError(absl::StrCat("removal: there is none of job '", removal.job(),
                                              "' on worker '", removal.worker(), "'"));
    }
    draft.removals.Erase(key);
    return absl::OkStatus();
  }
  if (draft.jobs.Find(removal.job()) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job: '", removal.job(), "' is known; `nibble checkpoint delete` removes its checkpoints"));
  }
  if (draft.workers.Find(removal.worker()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", removal.worker(), "'"));
  }
  if (draft.removals.size() >= kMaxOrphans && draft.removals.Find(key) == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("removals: ", draft.removals.size(),
                                                     " are in progress; at most ", kMaxOrphans));
  }
  v1::OrphanRemoval& record = draft.removals.Put(key);
  record = removal;
  record.set_author(std::string(stamp.author));
  return absl::OkStatus();
}

}  // namespace nibble::apply

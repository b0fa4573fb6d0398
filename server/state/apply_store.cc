// Facts of a store that is not, or not yet, what its workers remember: its epochs, and what it
// learns again from them. docs/decisions/0008-whose-store.md gives the argument.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "server/state/apply.h"
#include "server/state/bounds.h"
#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

constexpr size_t kStoreIdDigits = 32;

void AddAdopted(const std::string& text, const std::string& reason, int64_t attempt, int64_t step,
                const Stamp& stamp, v1::JobRecord& job, Draft& draft) {
  AddEvent({.kind = v1::JOB_EVENT_KIND_ADOPTED,
            .text = absl::StrCat(text, reason.empty() ? "" : ": ", Clip(reason, kMaxClause)),
            .attempt = attempt,
            .step = step},
           stamp, job, draft);
}

// Workers have a timeline with later revisions: ranks have run, or will run, under them.
absl::Status TakeTimeline(const RevisionMessages& revisions, const v1::JobRecord& job,
                          Draft& draft) {
  const v1::TimelineRecord& known = *draft.timelines.Find(job.id());
  if (revisions.empty() || revisions.rbegin()->number() <= known.revisions().rbegin()->number()) {
    return absl::OkStatus();
  }
  absl::Status status = CheckRevisions(revisions);
  if (!status.ok()) return status;
  v1::TimelineRecord& timeline = *draft.timelines.Edit(job.id());
  *timeline.mutable_revisions() = revisions;
  timeline.clear_retired();
  const auto in_force = std::find_if(
      revisions.begin(), revisions.end(),
      [&](const v1::RecipeRevision& revision) { return revision.number() == timeline.in_force(); });
  if (in_force == revisions.end()) timeline.set_in_force(0);
  return absl::OkStatus();
}

// A later attempt that has a checkpoint at an earlier step, or the same, began before this one and
// took its own way.
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
  absl::Status status = CheckRange("ref.step", ref.step(), 0, job.shape().steps());
  if (!status.ok()) return status;
  status = CheckRange("ref.attempt", ref.attempt(), 1, job.last_attempt());
  if (!status.ok()) return status;
  status = CheckRange("world", checkpoint.world(), 1, kMaxRanks);
  if (!status.ok()) return status;
  if (fact.shards_size() != checkpoint.world()) {
    return absl::InvalidArgumentError(absl::StrCat("shards: ", fact.shards_size(), " of a ",
                                                   CheckpointText(ref), " that has ",
                                                   checkpoint.world()));
  }
  for (int32_t rank = 0; rank < checkpoint.world(); ++rank) {
    const v1::CheckpointShard& shard = fact.shards(rank);
    if (shard.rank() != rank || shard.holders().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("shards: the one in place ", rank,
                                                     " is of rank ", shard.rank(), ", with ",
                                                     Counted(shard.holders_size(), "holder")));
    }
    status = CheckRange("bytes", shard.bytes(), 0, kMaxCount / kMaxRanks);
    if (!status.ok()) return status;
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

absl::Status CheckStoreId(absl::string_view field, const std::string& id) {
  const bool good =
      id.size() == kStoreIdDigits && std::all_of(id.begin(), id.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": '", Clip(id, kMaxNameBytes), "' is not ",
                                                 kStoreIdDigits, " of 0-9 and a-f"));
}

absl::Status Apply(const v1::StoreRestored& fact, const Stamp&, Draft& draft) {
  absl::Status status = CheckStoreId("store_id", fact.store_id());
  if (!status.ok()) return status;
  v1::StoreIdentity& store = *draft.cluster.Edit(kOnlyKey)->mutable_store();
  if (!store.id().empty() && store.id() != fact.store_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store_id: this is '", store.id(), "', not '", fact.store_id(), "'"));
  }
  status = CheckRange("epoch", fact.epoch(), store.epoch() + 1, kMaxCount);
  if (!status.ok()) return status;
  store.set_id(fact.store_id());
  store.set_epoch(fact.epoch());
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobAdopted& fact, const Stamp& stamp, Draft& draft) {
  const v1::JobRecord& adopted = fact.job();
  absl::Status status = CheckName("job", adopted.id());
  if (status.ok()) status = CheckName("name", adopted.name());
  if (!status.ok()) return status;
  if (draft.jobs.Find(adopted.id()) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("job: '", adopted.id(), "' is known already"));
  }
  v1::ClusterRecord* const cluster = draft.cluster.Edit(kOnlyKey);
  status = CheckRange("number", adopted.number(), cluster->next_job_number(), kMaxCount - 1);
  if (!status.ok()) return status;
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
  status = CheckRange("last_attempt", adopted.last_attempt(), 0, kMaxCount - 1);
  if (!status.ok()) return status;
  status = CheckPlan(adopted.scheduling(), adopted.restart_policy(), adopted.shape(), draft);
  if (status.ok()) status = CheckRevisions(fact.revisions());
  if (!status.ok()) return status;
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
  status = SetTargets(adopted.notify(), job);
  if (!status.ok()) return status;
  AddAdopted("adopted from its workers", fact.reason(), adopted.last_attempt(), -1, stamp, job,
             draft);
  for (const auto& [key, removal] : draft.removals.WithPrefix("")) {
    if (removal->job() == adopted.id()) draft.removals.Erase(key);
  }
  return absl::OkStatus();
}

absl::Status Apply(const v1::AttemptAdopted& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, fact.job());
  if (!job.ok()) return job.status();
  const int64_t number = fact.attempt().number();
  const int64_t last = (*job)->last_attempt();
  if (fact.living()) {
    // Known, living or ended: what its ranks know better is the timeline.
    absl::Status status = CheckRange("attempt.number", number, std::max<int64_t>(1, last), last);
    if (!status.ok()) return status;
    AddAdopted("its timeline is taken over from its ranks", fact.reason(), number, -1, stamp, **job,
               draft);
    return TakeTimeline(fact.revisions(), **job, draft);
  }
  absl::Status status = CheckRange("attempt.number", number, last + 1, kMaxCount - 1);
  if (!status.ok()) return status;
  if ((*job)->has_attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt: ", (*job)->attempt().number(), " of ", fact.job(), " still lives"));
  }
  (*job)->set_last_attempt(number);
  v1::Attempt ended = fact.attempt();
  ended.set_outcome(v1::ATTEMPT_OUTCOME_LOST);
  ended.set_reason(fact.reason());
  ended.set_ended_unix_ms(stamp.time_unix_ms);
  AddEnded(std::move(ended), **job);
  AddAdopted(absl::StrCat("attempts up to ", number, " were made"), fact.reason(), number, -1,
             stamp, **job, draft);
  return TakeTimeline(fact.revisions(), **job, draft);
}

absl::Status Apply(const v1::CheckpointAdopted& fact, const Stamp& stamp, Draft& draft) {
  const v1::CheckpointRef& ref = fact.checkpoint().ref();
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, ref.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckAdopted(fact, **job, draft);
  if (!status.ok()) return status;
  const std::string key = CheckpointKey(ref);
  if (draft.checkpoints.Find(key) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("ref: the ", CheckpointText(ref), " is known"));
  }
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
  // Training got this far: what failed before it is not progress that is missing.
  if (!left) (*job)->set_restarts_without_progress(0);
  AddAdopted(absl::StrCat("the ", CheckpointText(ref), " is known again: ",
                          Counted(checkpoint.world(), "shard"), ", ", Counted(bytes, "byte")),
             fact.reason(), ref.attempt(), ref.step(), stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::OrphanRemovalSet& fact, const Stamp& stamp, Draft& draft) {
  const v1::OrphanRemoval& removal = fact.removal();
  absl::Status status = CheckName("worker", removal.worker());
  if (status.ok()) status = CheckName("job", removal.job());
  if (!status.ok()) return status;
  const std::string key = RemovalKey(removal.worker(), removal.job());
  if (fact.done()) {
    if (draft.removals.Find(key) == nullptr) {
      return absl::NotFoundError(absl::StrCat("removal: of job '", removal.job(), "' on worker '",
                                              removal.worker(), "' there is none"));
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
    return absl::ResourceExhaustedError(
        absl::StrCat("removals: ", draft.removals.size(), " are under way; at most ", kMaxOrphans));
  }
  v1::OrphanRemoval& record = draft.removals.Put(key);
  record = removal;
  record.set_author(std::string(stamp.author));
  return absl::OkStatus();
}

}  // namespace nibble::apply

// Facts of the cluster: its name, workers, queues and the identity of its store, and what a lost or
// restored store adopts from its workers (docs/decisions/0008-whose-store.md).
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

constexpr char kDefaultQueue[] = "default";
constexpr size_t kStoreIdDigits = 32;

// InvalidArgument unless it is 32 lower-case hexadecimal digits.
absl::Status CheckStoreId(absl::string_view field, const std::string& id) {
  const bool good =
      id.size() == kStoreIdDigits && std::all_of(id.begin(), id.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": '", Clip(id, kMaxNameBytes), "' is not ",
                                                 kStoreIdDigits, " of 0-9 and a-f"));
}

absl::StatusOr<v1::WorkerRecord*> EditWorker(Draft& draft, const std::string& name) {
  v1::WorkerRecord* const worker = draft.workers.Edit(name);
  if (worker == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker: there is no '", name, "'"));
  }
  return worker;
}

// The worker's index among the job's blames; -1 if it has none.
int FindBlame(const v1::JobRecord& job, const std::string& worker) {
  for (int i = 0; i < job.blames_size(); ++i) {
    if (job.blames(i).worker() == worker) return i;
  }
  return -1;
}

absl::Status CheckIdentity(const v1::WorkerIdentity& identity) {
  NIBBLE_RETURN_IF_ERROR(CheckName("identity.name", identity.name()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.incarnation", identity.incarnation(), 1, kMaxCount));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.slots", identity.slots(), 1, kMaxSlots));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.hardware.device", identity.hardware().device(),
                                    v1::DEVICE_CPU, v1::DEVICE_CUDA));
  NIBBLE_RETURN_IF_ERROR(CheckRange("identity.hardware.memory_bytes",
                                    identity.hardware().memory_bytes(), 0, kMaxCount));
  std::set<std::string> keys;
  for (const v1::Label& label : identity.labels()) {
    if (label.key().empty() || !keys.insert(label.key()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("identity.labels: the key '", label.key(), "' is empty or a duplicate"));
    }
  }
  return absl::OkStatus();
}

// An incarnation of a worker ends only after the attempts that rely on it.
absl::Status CheckNoGangs(const std::string& worker, const Draft& draft) {
  const std::set<std::string> gangs = draft.GangsOn(worker);
  if (gangs.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker: ", worker, " has ranks of ", *gangs.begin()));
}

}  // namespace

absl::Status Apply(const v1::ClusterNamed& fact, const Stamp&, Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckName("cluster", fact.name()));
  if (const v1::ClusterRecord* const known = draft.cluster.Find(kOnlyKey)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cluster: this is '", known->name(), "', not '", fact.name(), "'"));
  }
  v1::ClusterRecord& cluster = draft.cluster.Put(kOnlyKey);
  cluster.set_name(fact.name());
  cluster.set_next_job_number(1);
  if (!fact.store_id().empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckStoreId("store_id", fact.store_id()));
    cluster.mutable_store()->set_id(fact.store_id());
    cluster.mutable_store()->set_epoch(1);
  }
  v1::Queue& queue = draft.queues.Put(kDefaultQueue);
  queue.set_name(kDefaultQueue);
  queue.set_quota_slots(-1);
  queue.set_borrow_slots(-1);
  queue.set_revision(1);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerRegistered& fact, const Stamp& stamp, Draft& draft) {
  const v1::WorkerIdentity& identity = fact.identity();
  NIBBLE_RETURN_IF_ERROR(CheckIdentity(identity));
  v1::WorkerRecord* worker = draft.workers.Edit(identity.name());
  if (worker == nullptr) {
    if (draft.workers.size() >= kMaxWorkers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("workers: there are ", draft.workers.size(), "; at most ", kMaxWorkers));
    }
    worker = &draft.workers.Put(identity.name());
    worker->set_mode(v1::WORKER_MODE_OPEN);
  } else if (worker->present() && identity.incarnation() < worker->identity().incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation: ", identity.incarnation(), " of worker ",
                                           identity.name(), " is over; the current one is ",
                                           worker->identity().incarnation()));
  } else if (identity.incarnation() != worker->identity().incarnation() ||
             identity.slots() != worker->identity().slots()) {
    NIBBLE_RETURN_IF_ERROR(CheckNoGangs(identity.name(), draft));
  }
  *worker->mutable_identity() = identity;
  if (!worker->present()) worker->set_present_since_unix_ms(stamp.time_unix_ms);
  worker->set_present(true);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerLost& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  if (worker->identity().incarnation() != fact.incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation: ", fact.incarnation(), " of worker ",
                                           fact.worker(), " is over; the current one is ",
                                           worker->identity().incarnation()));
  }
  if (!worker->present()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker: ", fact.worker(), " is already absent"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckNoGangs(fact.worker(), draft));
  worker->set_present(false);
  worker->set_present_since_unix_ms(stamp.time_unix_ms);
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerModeSet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("mode", fact.mode(), v1::WORKER_MODE_OPEN, v1::WORKER_MODE_DRAINING));
  worker->set_mode(fact.mode());
  worker->set_mode_reason(fact.reason());
  worker->set_mode_author(std::string(stamp.author));
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerFlagged& fact, const Stamp&, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  if (fact.flag().empty()) return absl::InvalidArgumentError("flag: is empty");
  auto& flags = *worker->mutable_flags();
  if (flags.size() == kMaxFlags) flags.erase(flags.begin());
  *flags.Add() = fact.flag();
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerFlagsCleared& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  worker->clear_flags();
  // The flags came from failed attempts, so jobs may use the worker again.
  for (const auto& [number, id] : draft.before().unfinished()) {
    const v1::JobRecord* const job = draft.jobs.Find(id);
    if (job == nullptr || FindBlame(*job, fact.worker()) < 0) continue;
    v1::JobRecord& edited = *draft.jobs.Edit(id);
    auto& blames = *edited.mutable_blames();
    const auto blame = blames.begin() + FindBlame(edited, fact.worker());
    const bool excluded = blame->excluded();
    blames.erase(blame);
    if (!excluded) continue;
    AddEvent({.kind = v1::JOB_EVENT_KIND_EXCLUDED,
              .text = absl::StrCat("worker ", fact.worker(), " is no longer excluded")},
             stamp, edited, draft);
  }
  return absl::OkStatus();
}

absl::Status Apply(const v1::WorkerForgotten& fact, const Stamp&, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::WorkerRecord* const worker, EditWorker(draft, fact.worker()));
  if (worker->present() || !draft.before().ShardsOn(fact.worker()).empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker: ", fact.worker(), worker->present() ? " is present" : " stores shards"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckNoGangs(fact.worker(), draft));
  draft.workers.Erase(fact.worker());
  return absl::OkStatus();
}

absl::Status Apply(const v1::QueueSet& fact, const Stamp&, Draft& draft) {
  const v1::Queue& queue = fact.queue();
  NIBBLE_RETURN_IF_ERROR(CheckName("queue.name", queue.name()));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("queue.quota_slots", queue.quota_slots(), -1, kMaxWorkers * kMaxSlots));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("queue.borrow_slots", queue.borrow_slots(), -1, kMaxWorkers * kMaxSlots));
  if (!queue.cohort().empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckName("queue.cohort", queue.cohort()));
  }
  const v1::Queue* const known = draft.queues.Find(queue.name());
  const int64_t next = known == nullptr ? 1 : known->revision() + 1;
  if (queue.revision() != next) {
    return absl::FailedPreconditionError(absl::StrCat("queue.revision: ", queue.revision(), " of ",
                                                      queue.name(), "; the next is ", next));
  }
  if (known == nullptr && draft.queues.size() >= kMaxQueues) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queues: there are ", draft.queues.size(), "; at most ", kMaxQueues));
  }
  draft.queues.Put(queue.name()) = queue;
  return absl::OkStatus();
}

absl::Status Apply(const v1::QueueDeleted& fact, const Stamp&, Draft& draft) {
  if (fact.queue() == kDefaultQueue) {
    return absl::InvalidArgumentError("queue: 'default' stays");
  }
  if (draft.queues.Find(fact.queue()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("queue: there is no '", fact.queue(), "'"));
  }
  if (draft.AnyUnfinishedIn(fact.queue())) {
    return absl::FailedPreconditionError(
        absl::StrCat("queue: unfinished jobs are in '", fact.queue(), "'"));
  }
  draft.queues.Erase(fact.queue());
  return absl::OkStatus();
}

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

absl::Status Apply(const v1::StoreRestored& fact, const Stamp&, Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckStoreId("store_id", fact.store_id()));
  v1::StoreIdentity& store = *draft.cluster.Edit(kOnlyKey)->mutable_store();
  if (!store.id().empty() && store.id() != fact.store_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store_id: this is '", store.id(), "', not '", fact.store_id(), "'"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("epoch", fact.epoch(), store.epoch() + 1, kMaxCount));
  store.set_id(fact.store_id());
  store.set_epoch(fact.epoch());
  return absl::OkStatus();
}

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

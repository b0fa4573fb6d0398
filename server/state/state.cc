#include "server/state/state.h"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

std::string Bytes(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status ApplyFact(const v1::Fact& fact, const Stamp& stamp, Draft& draft) {
  using F = v1::Fact;
  switch (fact.fact_case()) {
    case F::kClusterNamed:
      return apply::Apply(fact.cluster_named(), stamp, draft);
    case F::kJobSubmitted:
      return apply::Apply(fact.job_submitted(), stamp, draft);
    case F::kJobMoved:
      return apply::Apply(fact.job_moved(), stamp, draft);
    case F::kJobGoalSet:
      return apply::Apply(fact.job_goal_set(), stamp, draft);
    case F::kJobPrioritySet:
      return apply::Apply(fact.job_priority_set(), stamp, draft);
    case F::kJobRestartPolicySet:
      return apply::Apply(fact.job_restart_policy_set(), stamp, draft);
    case F::kJobForgotten:
      return apply::Apply(fact.job_forgotten(), stamp, draft);
    case F::kAttemptLaunched:
      return apply::Apply(fact.attempt_launched(), stamp, draft);
    case F::kAttemptStopping:
      return apply::Apply(fact.attempt_stopping(), stamp, draft);
    case F::kAttemptEnded:
      return apply::Apply(fact.attempt_ended(), stamp, draft);
    case F::kRanksMoved:
      return apply::Apply(fact.ranks_moved(), stamp, draft);
    case F::kWorkerBlamed:
      return apply::Apply(fact.worker_blamed(), stamp, draft);
    case F::kCheckpointRequested:
      return apply::Apply(fact.checkpoint_requested(), stamp, draft);
    case F::kRecipeRevised:
      return apply::Apply(fact.recipe_revised(), stamp, draft);
    case F::kRevisionsArchived:
      return apply::Apply(fact.revisions_archived(), stamp, draft);
    case F::kPostsSettled:
      return apply::Apply(fact.posts_settled(), stamp, draft);
    case F::kAlertChanged:
      return apply::Apply(fact.alert_changed(), stamp, draft);
    case F::kRevisionConfirmed:
      return apply::Apply(fact.revision_confirmed(), stamp, draft);
    case F::kGuardDecided:
      return apply::Apply(fact.guard_decided(), stamp, draft);
    case F::kRevisionRefused:
      return apply::Apply(fact.revision_refused(), stamp, draft);
    case F::kShardStored:
      return apply::Apply(fact.shard_stored(), stamp, draft);
    case F::kShardHolderSet:
      return apply::Apply(fact.shard_holder_set(), stamp, draft);
    case F::kCheckpointCommitted:
      return apply::Apply(fact.checkpoint_committed(), stamp, draft);
    case F::kCheckpointDamaged:
      return apply::Apply(fact.checkpoint_damaged(), stamp, draft);
    case F::kCheckpointPinSet:
      return apply::Apply(fact.checkpoint_pin_set(), stamp, draft);
    case F::kCheckpointDeleted:
      return apply::Apply(fact.checkpoint_deleted(), stamp, draft);
    case F::kCheckpointRestoreOrdered:
      return apply::Apply(fact.checkpoint_restore_ordered(), stamp, draft);
    case F::kCheckpointTaskSet:
      return apply::Apply(fact.checkpoint_task_set(), stamp, draft);
    case F::kWorkerRegistered:
      return apply::Apply(fact.worker_registered(), stamp, draft);
    case F::kWorkerLost:
      return apply::Apply(fact.worker_lost(), stamp, draft);
    case F::kWorkerModeSet:
      return apply::Apply(fact.worker_mode_set(), stamp, draft);
    case F::kWorkerFlagged:
      return apply::Apply(fact.worker_flagged(), stamp, draft);
    case F::kWorkerFlagsCleared:
      return apply::Apply(fact.worker_flags_cleared(), stamp, draft);
    case F::kWorkerForgotten:
      return apply::Apply(fact.worker_forgotten(), stamp, draft);
    case F::kQueueSet:
      return apply::Apply(fact.queue_set(), stamp, draft);
    case F::kQueueDeleted:
      return apply::Apply(fact.queue_deleted(), stamp, draft);
    case F::kStoreRestored:
      return apply::Apply(fact.store_restored(), stamp, draft);
    case F::kStoreOpened:
      return apply::Apply(fact.store_opened(), stamp, draft);
    case F::kStoreReplaced:
      return apply::Apply(fact.store_replaced(), stamp, draft);
    case F::kJobAdopted:
      return apply::Apply(fact.job_adopted(), stamp, draft);
    case F::kAttemptAdopted:
      return apply::Apply(fact.attempt_adopted(), stamp, draft);
    case F::kCheckpointAdopted:
      return apply::Apply(fact.checkpoint_adopted(), stamp, draft);
    case F::kOrphanRemovalSet:
      return apply::Apply(fact.orphan_removal_set(), stamp, draft);
    case F::FACT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("facts: one is empty or of an unknown kind");
}

std::vector<EntityChange> ChangesOf(const Draft& draft) {
  std::vector<EntityChange> changes;
  VisitTables(draft, draft, [&changes](v1::EntityKind kind, const auto& table, const auto&) {
    for (const auto& [key, record] : table.changes()) {
      changes.push_back({kind, key, std::nullopt});
      if (record != nullptr) changes.back().value = Bytes(*record);
    }
  });
  return changes;
}

}  // namespace

absl::Status State::Stage(const v1::Update& update, Draft& draft) const {
  if (static_cast<int64_t>(update.ByteSizeLong()) > kMaxUpdateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("update: has ", update.ByteSizeLong(),
                                                   " bytes; at most ", kMaxUpdateBytes,
                                                   " are allowed"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckBounds(update));
  if (update.sequence() != sequence() + 1) {
    return absl::InternalError(absl::StrCat("sequence: ", update.sequence(),
                                            " is out of order; the next is ", sequence() + 1));
  }
  // The wall clock may have been set back since the last update, so times need not grow.
  NIBBLE_RETURN_IF_ERROR(CheckRange("time_unix_ms", update.time_unix_ms(), 0, kMaxCount));
  if (update.author().empty()) return absl::InvalidArgumentError("author: is empty");
  if (sequence() == 0 && (update.facts().empty() || !update.facts(0).has_cluster_named())) {
    return absl::FailedPreconditionError("facts: the first fact of a store must name the cluster");
  }
  if (update.facts().empty() || !update.facts(0).has_store_restored()) {
    NIBBLE_RETURN_IF_ERROR(Replaced());
  }
  const Stamp stamp = {update.sequence(), update.time_unix_ms(), update.author()};
  for (const v1::Fact& fact : update.facts()) {
    NIBBLE_RETURN_IF_ERROR(ApplyFact(fact, stamp, draft));
  }
  if (update.has_request()) {
    NIBBLE_RETURN_IF_ERROR(apply::Remember(update.request(), stamp, draft));
  }
  apply::CoverTimelines(draft);
  NIBBLE_RETURN_IF_ERROR(apply::CheckJobs(draft));
  v1::HeadRecord& head = draft.head.Put(kOnlyKey);
  head.set_sequence(update.sequence());
  head.set_time_unix_ms(update.time_unix_ms());
  return absl::OkStatus();
}

void State::Commit(const Draft& draft) {
  VisitTables(draft, tables_, [this](v1::EntityKind, const auto& changed, auto& table) {
    for (const auto& [key, record] : changed.changes()) {
      if (const auto* const old = table.Find(key)) index_.Remove(key, *old->second);
      if (record == nullptr) {
        table.Erase(key);
        continue;
      }
      index_.Add(key, *record);
      table.Put(key, record);
    }
  });
}

absl::Status State::Validate(const v1::Update& update) const {
  Draft draft(tables_, index_);
  return Stage(update, draft);
}

absl::StatusOr<std::vector<EntityChange>> State::Apply(const v1::Update& update) {
  Draft draft(tables_, index_);
  NIBBLE_RETURN_IF_ERROR(Stage(update, draft));
  Commit(draft);
  return ChangesOf(draft);
}

int64_t State::sequence() const {
  const v1::HeadRecord* const head = FindIn(tables_.head, kOnlyKey);
  return head == nullptr ? 0 : head->sequence();
}

int64_t State::time_unix_ms() const {
  const v1::HeadRecord* const head = FindIn(tables_.head, kOnlyKey);
  return head == nullptr ? 0 : head->time_unix_ms();
}

std::string State::cluster() const {
  const v1::ClusterRecord* const cluster = FindIn(tables_.cluster, kOnlyKey);
  return cluster == nullptr ? "" : cluster->name();
}

v1::StoreIdentity State::store() const {
  const v1::ClusterRecord* const cluster = FindIn(tables_.cluster, kOnlyKey);
  if (cluster == nullptr || cluster->store().id().empty()) return {};
  v1::StoreIdentity store = cluster->store();
  store.set_sequence(sequence());
  if (!cluster->lives().empty()) store.set_life(cluster->lives().rbegin()->id());
  return store;
}

absl::Status State::Replaced() const {
  const v1::ClusterRecord* const cluster = FindIn(tables_.cluster, kOnlyKey);
  if (cluster == nullptr || !cluster->has_replaced_by()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("store: this coordinator was replaced, and changes nothing: ",
                   cluster->replaced_reason(),
                   ". Stop it; if it is to take over from the other one, stop that, and start this "
                   "one with --restored"));
}

const v1::Checkpoint* State::FindCheckpoint(const v1::CheckpointRef& ref) const {
  return FindIn(tables_.checkpoints, CheckpointKey(ref));
}

const v1::CheckpointShard* State::FindShard(const v1::CheckpointRef& ref, int32_t rank) const {
  return FindIn(tables_.shards, ShardKey(ref, rank));
}

const v1::CheckpointDeletion* State::FindDeletion(const v1::CheckpointRef& ref) const {
  return FindIn(tables_.deletions, CheckpointKey(ref));
}

const v1::RequestRecord* State::FindRequest(absl::string_view author,
                                            absl::string_view request_id) const {
  return FindIn(tables_.requests, RequestKey(author, request_id));
}

namespace {

template <class Record>
std::vector<const Record*> WithPrefix(const Table<Record>& table, absl::string_view prefix) {
  std::vector<const Record*> found;
  for (auto at = table.lower_bound(prefix);
       at != table.end() && absl::StartsWith(at->first, prefix); ++at) {
    found.push_back(at->second.get());
  }
  return found;
}

}  // namespace

std::vector<const v1::OrphanRemoval*> State::RemovalsOn(absl::string_view worker) const {
  return WithPrefix(tables_.removals, RemovalPrefix(worker));
}

std::vector<const v1::JobEvent*> State::EventsOf(absl::string_view job) const {
  return WithPrefix(tables_.events, JobPrefix(job));
}

std::vector<const v1::RecipeRevision*> State::ArchiveOf(absl::string_view job) const {
  return WithPrefix(tables_.archive, JobPrefix(job));
}

std::vector<const v1::Checkpoint*> State::CheckpointsOf(absl::string_view job) const {
  return WithPrefix(tables_.checkpoints, JobPrefix(job));
}

std::vector<const v1::CheckpointDeletion*> State::DeletionsOf(absl::string_view job) const {
  return WithPrefix(tables_.deletions, JobPrefix(job));
}

std::vector<const v1::CheckpointShard*> State::ShardsOf(const v1::CheckpointRef& ref) const {
  return WithPrefix(tables_.shards, ShardPrefix(ref));
}

const v1::Checkpoint* State::NewestGood(absl::string_view job) const {
  return Draft(tables_, index_).NewestGood(job);
}

const v1::Checkpoint* State::NewestWhole(absl::string_view job) const {
  return Draft(tables_, index_).NewestWhole(job);
}

const v1::Checkpoint* State::OriginOf(const v1::JobRecord& job) const {
  return Draft(tables_, index_).OriginOf(job);
}

int64_t State::EarliestStep(const v1::JobRecord& job) const {
  return Draft(tables_, index_).EarliestStep(job);
}

int64_t State::NeededStep(const v1::JobRecord& job) const {
  return Draft(tables_, index_).NeededStep(job);
}

std::vector<EntityChange> Snapshot(const State& state) {
  std::vector<EntityChange> changes;
  VisitTables(state.tables(), state.tables(),
              [&changes](v1::EntityKind kind, const auto& table, const auto&) {
                for (const auto& [key, record] : table) {
                  changes.push_back({kind, key, Bytes(*record)});
                }
              });
  return changes;
}

namespace {

std::string Named(v1::EntityKind kind, absl::string_view key) {
  return absl::StrCat("entity ", v1::EntityKind_Name(kind), " '", key, "'");
}

// The key that follows from the record itself; unset for kinds whose records do not contain it.
template <class Record>
std::optional<std::string> KeyOf(const Record&) {
  return std::nullopt;
}
std::optional<std::string> KeyOf(const v1::HeadRecord&) { return std::string(kOnlyKey); }
std::optional<std::string> KeyOf(const v1::ClusterRecord&) { return std::string(kOnlyKey); }
std::optional<std::string> KeyOf(const v1::JobRecord& job) { return job.id(); }
std::optional<std::string> KeyOf(const v1::JobEvent& event) {
  return EventKey(event.job(), event.number());
}
std::optional<std::string> KeyOf(const v1::WorkerRecord& worker) {
  return worker.identity().name();
}
std::optional<std::string> KeyOf(const v1::Queue& queue) { return queue.name(); }
std::optional<std::string> KeyOf(const v1::Checkpoint& checkpoint) {
  return CheckpointKey(checkpoint.ref());
}
std::optional<std::string> KeyOf(const v1::CheckpointDeletion& deletion) {
  return CheckpointKey(deletion.ref());
}
std::optional<std::string> KeyOf(const v1::RequestRecord& request) {
  return RequestKey(request.author(), request.request_id());
}
std::optional<std::string> KeyOf(const v1::OrphanRemoval& removal) {
  return RemovalKey(removal.worker(), removal.job());
}

template <class Record>
absl::Status Load(v1::EntityKind kind, absl::string_view key, absl::string_view value,
                  Table<Record>& table) {
  auto record = std::make_shared<Record>();
  if (!record->ParseFromArray(value.data(), static_cast<int>(value.size()))) {
    return absl::DataLossError(
        absl::StrCat(Named(kind, key), ": ", value.size(), " bytes cannot be parsed"));
  }
  const absl::Status bounds = CheckBounds(*record);
  if (absl::IsFailedPrecondition(bounds)) {
    return absl::FailedPreconditionError(
        absl::StrCat(Named(kind, key), ": ", bounds.message(),
                     ": a newer coordinator wrote it; start that one, or restore a backup from "
                     "before with this one"));
  }
  if (!bounds.ok()) {
    return absl::DataLossError(absl::StrCat(Named(kind, key), ": ", bounds.message()));
  }
  const std::optional<std::string> own = KeyOf(*record);
  if (own && *own != key) {
    return absl::DataLossError(absl::StrCat(Named(kind, key), ": contains the key '", *own, "'"));
  }
  if (table.contains(key)) {
    return absl::DataLossError(absl::StrCat(Named(kind, key), ": is a duplicate"));
  }
  table.Put(std::string(key), std::move(record));
  return absl::OkStatus();
}

absl::Status Missing(v1::EntityKind kind, absl::string_view key) {
  return absl::DataLossError(absl::StrCat(Named(kind, key), ": is missing"));
}

// Checks the references that other code follows without a check.
absl::Status CheckReferences(const Tables& tables) {
  bool any = false;
  VisitTables(tables, tables,
              [&any](v1::EntityKind, const auto& table, const auto&) { any |= !table.empty(); });
  if (!any) return absl::OkStatus();
  if (tables.head.empty()) return Missing(v1::ENTITY_KIND_HEAD, kOnlyKey);
  if (tables.cluster.empty()) return Missing(v1::ENTITY_KIND_CLUSTER, kOnlyKey);
  for (const auto& [id, job] : tables.jobs) {
    if (!tables.specs.contains(id)) return Missing(v1::ENTITY_KIND_SPEC, id);
    if (!tables.timelines.contains(id)) return Missing(v1::ENTITY_KIND_TIMELINE, id);
    if (!tables.queues.contains(job->scheduling().queue()) && job->finished_unix_ms() == 0) {
      return Missing(v1::ENTITY_KIND_QUEUE, job->scheduling().queue());
    }
    for (const v1::Placement& placement : job->attempt().placements()) {
      if (!tables.workers.contains(placement.worker())) {
        return Missing(v1::ENTITY_KIND_WORKER, placement.worker());
      }
    }
  }
  for (const auto& [key, revision] : tables.archive) {
    const std::string job = key.substr(0, key.rfind('/'));
    if (!tables.jobs.contains(job)) return Missing(v1::ENTITY_KIND_JOB, job);
  }
  for (const auto& [key, deletion] : tables.deletions) {
    if (!tables.jobs.contains(deletion->ref().job())) {
      return Missing(v1::ENTITY_KIND_JOB, deletion->ref().job());
    }
  }
  for (const auto& [key, checkpoint] : tables.checkpoints) {
    if (!tables.jobs.contains(checkpoint->ref().job())) {
      return Missing(v1::ENTITY_KIND_JOB, checkpoint->ref().job());
    }
    for (int32_t rank = 0; rank < checkpoint->world(); ++rank) {
      if (checkpoint->state() == v1::CHECKPOINT_STATE_WRITING) break;
      const std::string shard = ShardKey(checkpoint->ref(), rank);
      if (!tables.shards.contains(shard)) return Missing(v1::ENTITY_KIND_SHARD, shard);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StateLoader::Add(v1::EntityKind kind, absl::string_view key, absl::string_view value) {
  absl::Status status = absl::DataLossError(
      absl::StrCat(Named(kind, key), ": unknown kind ", static_cast<int>(kind)));
  VisitTables(state_.tables_, state_.tables_, [&](v1::EntityKind of, auto& table, const auto&) {
    if (of == kind) status = Load(kind, key, value, table);
  });
  return status;
}

absl::StatusOr<State> StateLoader::Finish() {
  State state(std::move(state_));
  state_.tables_ = Tables();
  state_.index_ = Index();
  NIBBLE_RETURN_IF_ERROR(CheckReferences(state.tables_));
  VisitTables(state.tables_, state.tables_,
              [&state](v1::EntityKind, const auto& table, const auto&) {
                for (const auto& [key, record] : table) state.index_.Add(key, *record);
              });
  return state;
}

}  // namespace nibble

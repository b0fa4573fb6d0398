// The durable state of the coordinator, as entities that only updates change. It uses no clock,
// disk, network or thread: the same updates make the same state, so replaying the journal
// reproduces it, and every rule is tested in microseconds.
//
// The only way to change it is to Apply an update, which is atomic. Everything else is const;
// entities are returned as pointers to const, and there is no assignment. Requests become updates
// in server/state/decide.h.
//
// Durable, and therefore here, is everything that was promised to a client or decides what may
// happen: specs, timelines, states, attempts and their placements, phases that moved a job, shards
// and checkpoints, which workers exist and whether they are present, cordoned or flagged. Not here,
// and never journalled, is what workers report repeatedly: heartbeats and leases
// (server/state/workers.h), steps, losses, rank health, and shards beyond the catalogue.
//
// Ownership: a State owns its entities and shares them with copies of itself; a pointer is valid
// until the next Apply. Thread-safety: const methods from any number of threads while no Apply
// runs.
#ifndef NIBBLE_SERVER_STATE_STATE_H_
#define NIBBLE_SERVER_STATE_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/tables.h"

namespace nibble {

// An entity to write to a store, or to erase from it.
struct EntityChange {
  v1::EntityKind kind = v1::ENTITY_KIND_UNSPECIFIED;
  std::string key;
  std::optional<std::string> value;  // serialised; unset: erased

  friend bool operator==(const EntityChange&, const EntityChange&) = default;
};

class State {
 public:
  // Empty: the first update names the cluster.
  State() = default;
  State(const State&) = default;
  State(State&&) = default;
  State& operator=(const State&) = delete;
  State& operator=(State&&) = delete;

  // Whether the update can be applied now. The status is meant for the caller of the API:
  //   InvalidArgument     a field is out of its bounds; names it, its value and what is allowed
  //   NotFound            something that it refers to does not exist
  //   AlreadyExists       something that it makes exists
  //   FailedPrecondition  the state forbids it: a transition that does not exist, a stale revision,
  //                       a pinned checkpoint
  //   Aborted             it reports on an attempt or an incarnation that is over; names both
  //   ResourceExhausted   a count is at its bound
  //   Internal            its sequence is out of order: not the caller's fault
  absl::Status Validate(const v1::Update& update) const;

  // Returns the entities that the update changes, by kind, then key: the store writes them together
  // with the journal record. Errors as Validate, and then nothing has changed.
  absl::StatusOr<std::vector<EntityChange>> Apply(const v1::Update& update);

  int64_t sequence() const;      // of the last update; 0: none
  int64_t time_unix_ms() const;  // of the last update, for people
  std::string cluster() const;   // empty before the first update
  // The identity of the store, with the last update and the life that made it; without an id if the
  // store was made before stores had ids, and without a MAC.
  v1::StoreIdentity store() const;
  // FailedPrecondition if a later epoch of the store was seen: only StoreRestored changes the state.
  absl::Status Replaced() const;

  // By id or name; null if there is none.
  const v1::JobRecord* FindJob(absl::string_view id) const { return FindIn(tables_.jobs, id); }
  const v1::SpecRecord* FindSpec(absl::string_view job) const { return FindIn(tables_.specs, job); }
  const v1::TimelineRecord* FindTimeline(absl::string_view job) const {
    return FindIn(tables_.timelines, job);
  }
  const v1::WorkerRecord* FindWorker(absl::string_view name) const {
    return FindIn(tables_.workers, name);
  }
  const v1::Queue* FindQueue(absl::string_view name) const { return FindIn(tables_.queues, name); }
  const v1::Checkpoint* FindCheckpoint(const v1::CheckpointRef& ref) const;
  const v1::CheckpointShard* FindShard(const v1::CheckpointRef& ref, int32_t rank) const;
  const v1::CheckpointDeletion* FindDeletion(const v1::CheckpointRef& ref) const;
  const v1::RequestRecord* FindRequest(absl::string_view author,
                                       absl::string_view request_id) const;

  // All entities of a kind, by key (server/state/entities.h).
  const Tables& tables() const { return tables_; }
  const Index& index() const { return index_; }

  // The orphaned jobs that the worker was ordered to delete, by job.
  std::vector<const v1::OrphanRemoval*> RemovalsOn(absl::string_view worker) const;

  // Events and archived revisions of a job by number, its checkpoints and deleted ones by step,
  // then attempt, and the shards of a checkpoint by rank.
  std::vector<const v1::JobEvent*> EventsOf(absl::string_view job) const;
  std::vector<const v1::RecipeRevision*> ArchiveOf(absl::string_view job) const;
  std::vector<const v1::Checkpoint*> CheckpointsOf(absl::string_view job) const;
  std::vector<const v1::CheckpointDeletion*> DeletionsOf(absl::string_view job) const;
  std::vector<const v1::CheckpointShard*> ShardsOf(const v1::CheckpointRef& ref) const;

  // As in Draft, for the committed state.
  const v1::Checkpoint* NewestGood(absl::string_view job) const;
  const v1::Checkpoint* NewestWhole(absl::string_view job) const;
  const v1::Checkpoint* OriginOf(const v1::JobRecord& job) const;
  int64_t EarliestStep(const v1::JobRecord& job) const;
  int64_t NeededStep(const v1::JobRecord& job) const;

 private:
  friend class StateLoader;

  absl::Status Stage(const v1::Update& update, Draft& draft) const;
  void Commit(const Draft& draft);

  Tables tables_;
  Index index_;
};

// Makes a State of the entities of a store.
class StateLoader {
 public:
  // Adds an entity; the order does not matter. DataLoss names the kind and key of bytes that are
  // not such an entity or break a bound, and of an entity that was added before.
  absl::Status Add(v1::EntityKind kind, absl::string_view key, absl::string_view value);

  // DataLoss names an entity that is missing although others refer to it. Without any entities the
  // state is empty. The loader is empty afterwards.
  absl::StatusOr<State> Finish();

 private:
  State state_;
};

// A snapshot of all entities, as changes to an empty store. Equal states have equal bytes.
std::vector<EntityChange> Snapshot(const State& state);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_STATE_H_

// All that the coordinator knows, as entities that only updates change. No clock, disk, network or
// thread is inside: the same updates make the same state, so a journal replayed equals the history,
// and every rule is tested in microseconds.
//
// One path leads in: Apply of an update, whole or not at all. Everything else is const; entities
// are handed out as pointers to const, and there is no assignment. Requests become updates in
// server/state/decide_*.h.
//
// What is durable and what is not. Durable (here): what was promised to somebody or decides what
// may happen: specs, timelines, states, attempts and their placements, phases that moved a job,
// shards and checkpoints, which workers exist, whether they are present, cordoned or flagged. Not
// here, and never journalled: heartbeats and leases (server/state/leases.h), steps, losses, rank
// health, which shards a worker happens to hold beyond the catalogue: workers say these again by
// themselves.
//
// Ownership: a State owns its entities and shares them with copies of itself; a pointer lives until
// the next Apply. Thread-safety: const methods from any number of threads while no Apply runs.
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
#include "server/state/draft.h"
#include "server/state/index.h"
#include "server/state/tables.h"

namespace nibble {

// An entity to write into a store, or to erase from it.
struct EntityChange {
  v1::EntityKind kind = v1::ENTITY_KIND_UNSPECIFIED;
  std::string key;
  std::optional<std::string> value;  // serialised; unset: erased

  friend bool operator==(const EntityChange&, const EntityChange&) = default;
};

class State {
 public:
  // Nothing: the first update names the cluster.
  State() = default;
  State(const State&) = default;
  State(State&&) = default;
  State& operator=(const State&) = delete;
  State& operator=(State&&) = delete;

  // Whether the update can be applied now. The status is what the asker should hear:
  //   InvalidArgument     a field is out of its bounds; names it, its value and what is allowed
  //   NotFound            something it speaks of does not exist
  //   AlreadyExists       something it makes does
  //   FailedPrecondition  the state forbids it: a way between states that there is not, a stale
  //                       revision, a pinned checkpoint
  //   Aborted             it speaks for an attempt or an incarnation that is over; names both
  //   ResourceExhausted   a count is at its bound
  //   Internal            its sequence does not follow: not the asker's fault
  absl::Status Validate(const v1::Update& update) const;

  // The entities that the update changes, as a store has to write them together with its journal
  // record; by kind, then key. Errors as Validate.
  absl::StatusOr<std::vector<EntityChange>> Preview(const v1::Update& update) const;

  // Errors as Validate, and then nothing has changed. Returns what Preview would have.
  absl::StatusOr<std::vector<EntityChange>> Apply(const v1::Update& update);

  int64_t sequence() const;      // of the last update; 0: none
  int64_t time_unix_ms() const;  // of the last update, for people
  std::string cluster() const;   // empty before the first update
  // Which store this is; `sequence` that of the last update. No id: made before stores had one.
  v1::StoreIdentity store() const;

  // By id or name; null where there is none.
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
  const v1::RequestRecord* FindRequest(absl::string_view author,
                                       absl::string_view request_id) const;

  // All of a kind, by key (server/state/keys.h).
  const Tables& tables() const { return tables_; }
  const Index& index() const { return index_; }

  // What the worker is to delete, by job.
  std::vector<const v1::OrphanRemoval*> RemovalsOn(absl::string_view worker) const;

  // Of one job, by number; likewise; by step, then attempt; of one checkpoint, by rank.
  std::vector<const v1::JobEvent*> EventsOf(absl::string_view job) const;
  std::vector<const v1::RecipeRevision*> ArchiveOf(absl::string_view job) const;
  std::vector<const v1::Checkpoint*> CheckpointsOf(absl::string_view job) const;
  std::vector<const v1::CheckpointShard*> ShardsOf(const v1::CheckpointRef& ref) const;

  // See Draft; of the state as it is.
  const v1::Checkpoint* NewestGood(absl::string_view job) const;
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

// Makes a State of the entities that a store holds.
class StateLoader {
 public:
  // In any order. DataLoss naming kind and key for bytes that are not such an entity, that break a
  // bound, or that are there twice.
  absl::Status Add(v1::EntityKind kind, absl::string_view key, absl::string_view value);

  // DataLoss naming what is missing: entities that others speak of. No entities at all are an empty
  // state. The loader is empty afterwards.
  absl::StatusOr<State> Finish();

 private:
  State state_;
};

// Everything, as changes to an empty store: a snapshot. Equal states have equal bytes.
std::vector<EntityChange> Snapshot(const State& state);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_STATE_H_

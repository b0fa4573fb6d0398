// The entities in tables, the index over them, and a draft: the result that an update would have on
// both.
//
// Entities are shared and never changed in place, so copying the tables takes constant time and a
// draft costs only what it changes. The index is derived from the tables and never stored. Only
// State can commit a draft; discarding one has no effect.
//
// Ownership: tables share their entities; a DraftTable borrows its table and a Draft its tables and
// index, which must not change while the draft lives. Pointers that they return live until the same
// key is erased, or the draft ends. Thread-safety: none of its own.
#ifndef NIBBLE_SERVER_STATE_TABLES_H_
#define NIBBLE_SERVER_STATE_TABLES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "server/state/persistent.h"

namespace nibble {

template <class Record>
using Table = PersistentMap<std::string, std::shared_ptr<const Record>>;

struct Tables {
  Table<v1::HeadRecord> head;
  Table<v1::ClusterRecord> cluster;
  Table<v1::JobRecord> jobs;
  Table<v1::SpecRecord> specs;
  Table<v1::TimelineRecord> timelines;
  Table<v1::JobEvent> events;
  Table<v1::WorkerRecord> workers;
  Table<v1::Queue> queues;
  Table<v1::Checkpoint> checkpoints;
  Table<v1::CheckpointShard> shards;
  Table<v1::RequestRecord> requests;
  Table<v1::RecipeRevision> archive;
  Table<v1::OrphanRemoval> removals;
  Table<v1::CheckpointDeletion> deletions;
};

// Calls f(kind, table of a, the same table of b) for every kind, in order. A and B have the members
// of Tables.
template <class A, class B, class F>
void VisitTables(A& a, B& b, F f) {
  f(v1::ENTITY_KIND_HEAD, a.head, b.head);
  f(v1::ENTITY_KIND_CLUSTER, a.cluster, b.cluster);
  f(v1::ENTITY_KIND_JOB, a.jobs, b.jobs);
  f(v1::ENTITY_KIND_SPEC, a.specs, b.specs);
  f(v1::ENTITY_KIND_TIMELINE, a.timelines, b.timelines);
  f(v1::ENTITY_KIND_EVENT, a.events, b.events);
  f(v1::ENTITY_KIND_WORKER, a.workers, b.workers);
  f(v1::ENTITY_KIND_QUEUE, a.queues, b.queues);
  f(v1::ENTITY_KIND_CHECKPOINT, a.checkpoints, b.checkpoints);
  f(v1::ENTITY_KIND_SHARD, a.shards, b.shards);
  f(v1::ENTITY_KIND_REQUEST, a.requests, b.requests);
  f(v1::ENTITY_KIND_ARCHIVED_REVISION, a.archive, b.archive);
  f(v1::ENTITY_KIND_ORPHAN_REMOVAL, a.removals, b.removals);
  f(v1::ENTITY_KIND_DELETION, a.deletions, b.deletions);
}

// Null if there is none.
template <class Record>
const Record* FindIn(const Table<Record>& table, absl::string_view key) {
  const auto* const found = table.Find(key);
  return found == nullptr ? nullptr : found->second.get();
}

// The pending changes of one table, on top of the committed table.
template <class Record>
class DraftTable {
 public:
  using Changes = std::map<std::string, std::shared_ptr<Record>, std::less<>>;  // null: erased

  explicit DraftTable(const Table<Record>& base) : base_(base) {}

  const Record* Find(absl::string_view key) const {
    const auto changed = changes_.find(key);
    return changed != changes_.end() ? changed->second.get() : FindIn(base_, key);
  }

  // A copy to change; null if there is none.
  Record* Edit(absl::string_view key) {
    const auto changed = changes_.find(key);
    if (changed != changes_.end()) return changed->second.get();
    const Record* const record = FindIn(base_, key);
    if (record == nullptr) return nullptr;
    return changes_.emplace(std::string(key), std::make_shared<Record>(*record))
        .first->second.get();
  }

  // A new, empty record, replacing any present one.
  Record& Put(absl::string_view key) {
    return *(changes_[std::string(key)] = std::make_shared<Record>());
  }

  void Erase(absl::string_view key) {
    if (base_.contains(key)) {
      changes_[std::string(key)] = nullptr;
    } else if (const auto added = changes_.find(key); added != changes_.end()) {
      changes_.erase(added);
    }
  }

  // Every entity whose key has the prefix, by key.
  std::vector<std::pair<std::string, const Record*>> WithPrefix(absl::string_view prefix) const {
    std::vector<std::pair<std::string, const Record*>> found;
    auto base = base_.lower_bound(prefix);
    auto change = changes_.lower_bound(prefix);
    const auto in = [prefix](const auto& at, const auto& end) {
      return at != end && absl::StartsWith(at->first, prefix);
    };
    while (in(base, base_.end()) || in(change, changes_.end())) {
      const bool changed =
          in(change, changes_.end()) && (!in(base, base_.end()) || change->first <= base->first);
      if (!changed) {
        found.emplace_back(base->first, base->second.get());
        ++base;
        continue;
      }
      if (in(base, base_.end()) && base->first == change->first) ++base;
      if (change->second != nullptr) found.emplace_back(change->first, change->second.get());
      ++change;
    }
    return found;
  }

  int64_t size() const {
    auto size = static_cast<int64_t>(base_.size());
    for (const auto& [key, record] : changes_) {
      size += (record != nullptr ? 1 : 0) - (base_.contains(key) ? 1 : 0);
    }
    return size;
  }

  const Changes& changes() const { return changes_; }

 private:
  const Table<Record>& base_;
  Changes changes_;
};

// Lookups other than by key. Add and Remove follow every change of the tables. A value: copies
// share nodes as tables do.
class Index {
 public:
  // Entities without such lookups are not indexed.
  template <class Record>
  void Add(const std::string& /*key*/, const Record&) {}
  template <class Record>
  void Remove(const std::string& /*key*/, const Record&) {}
  void Add(const std::string& key, const v1::JobRecord& job);
  void Remove(const std::string& key, const v1::JobRecord& job);
  void Add(const std::string& key, const v1::CheckpointShard& shard);
  void Remove(const std::string& key, const v1::CheckpointShard& shard);
  void Add(const std::string& key, const v1::RequestRecord& request);
  void Remove(const std::string& key, const v1::RequestRecord& request);

  using Names = PersistentSet<std::string>;

  // Ids by number, newest first.
  const PersistentMap<int64_t, std::string, std::greater<>>& jobs() const { return jobs_; }
  // Ids by number, oldest first.
  const PersistentMap<int64_t, std::string>& unfinished() const { return unfinished_; }
  // Ids by finishing time, then number.
  const PersistentMap<std::pair<int64_t, int64_t>, std::string>& finished() const {
    return finished_;
  }
  // Jobs with a live attempt that has ranks on the worker.
  const Names& GangsOn(absl::string_view worker) const;
  // Unfinished jobs whose origin is the checkpoint with this key.
  const Names& ForksOf(absl::string_view checkpoint_key) const;
  // Keys of the shards that the worker holds, by checkpoint, then rank.
  const Names& ShardsOn(absl::string_view worker) const;
  // Jobs with events that are neither delivered nor given up.
  const Names& unsettled() const { return unsettled_; }
  // Keys by the sequence of the update that carried out the request.
  const PersistentMap<int64_t, std::string>& requests() const { return requests_; }

 private:
  using Sets = PersistentMap<std::string, Names>;

  PersistentMap<int64_t, std::string, std::greater<>> jobs_;
  PersistentMap<int64_t, std::string> unfinished_;
  PersistentMap<std::pair<int64_t, int64_t>, std::string> finished_;
  Sets gangs_;
  Sets forks_;
  Sets shards_;
  Names unsettled_;
  PersistentMap<int64_t, std::string> requests_;
};

// The update that a fact belongs to.
struct Stamp {
  int64_t sequence = 0;
  int64_t time_unix_ms = 0;
  absl::string_view author;
};

// The state as an update would leave it: the rules of the facts (server/state/apply.h) read and
// write it.
class Draft {
 public:
  Draft(const Tables& tables, const Index& index);

  DraftTable<v1::HeadRecord> head;
  DraftTable<v1::ClusterRecord> cluster;
  DraftTable<v1::JobRecord> jobs;
  DraftTable<v1::SpecRecord> specs;
  DraftTable<v1::TimelineRecord> timelines;
  DraftTable<v1::JobEvent> events;
  DraftTable<v1::WorkerRecord> workers;
  DraftTable<v1::Queue> queues;
  DraftTable<v1::Checkpoint> checkpoints;
  DraftTable<v1::CheckpointShard> shards;
  DraftTable<v1::RequestRecord> requests;
  DraftTable<v1::RecipeRevision> archive;
  DraftTable<v1::OrphanRemoval> removals;
  DraftTable<v1::CheckpointDeletion> deletions;

  // The index of the state before the update.
  const Index& before() const { return before_; }

  // As in Index, for the draft.
  std::set<std::string> GangsOn(absl::string_view worker) const;
  bool AnyUnfinishedIn(absl::string_view queue) const;
  int64_t UnfinishedJobs() const;
  bool AnyForkOf(absl::string_view checkpoint_key) const;

  // The newest committed checkpoint that is not damaged and not abandoned; of two at one step the
  // later attempt's. Null if there is none.
  const v1::Checkpoint* NewestGood(absl::string_view job) const;
  // The newest such checkpoint that was committed in the store's present epoch and is whole: every
  // shard is on a present worker. Retention deletes older ones alone. Null if there is none.
  const v1::Checkpoint* NewestWhole(absl::string_view job) const;
  // The checkpoint of another job that the job may begin from: its origin, damaged or not. Null if
  // it has none, or takes only the weights and has a checkpoint of its own, good or damaged.
  const v1::Checkpoint* OriginOf(const v1::JobRecord& job) const;
  // The checkpoint that the next attempt loads: the newest good one, else the origin. Null if it
  // begins at step 0 with nothing.
  const v1::Checkpoint* ResumeOf(const v1::JobRecord& job) const;
  // The first step that ranks of the live attempt, or of the next one, can run: the timeline before
  // it is history.
  int64_t EarliestStep(const v1::JobRecord& job) const;
  // The first step that any later attempt can run as well, unless a checkpoint is lost: counts what
  // the live attempt has committed. Revisions that ended before it can be archived.
  int64_t NeededStep(const v1::JobRecord& job) const;

 private:
  const Index& before_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_TABLES_H_

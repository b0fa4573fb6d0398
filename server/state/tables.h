// Entities in tables, and a table under change: what an update would make of it, over what it is.
// Entities are shared and never changed in place, so a draft costs what it touches, and so does a
// copy of the tables.
//
// Ownership: tables share their entities; a DraftTable borrows its base. Pointers that it hands out
// live until the same key is erased, or the draft ends. Thread-safety: none of its own.
#ifndef NIBBLE_SERVER_STATE_TABLES_H_
#define NIBBLE_SERVER_STATE_TABLES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
};

// f(kind, table of a, the same table of b) for every kind, in order. A and B have the members of
// Tables.
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
}

// Null where there is none.
template <class Record>
const Record* FindIn(const Table<Record>& table, absl::string_view key) {
  const auto* const found = table.Find(key);
  return found == nullptr ? nullptr : found->second.get();
}

template <class Record>
class DraftTable {
 public:
  using Changes = std::map<std::string, std::shared_ptr<Record>, std::less<>>;  // null: erased

  explicit DraftTable(const Table<Record>& base) : base_(base) {}

  const Record* Find(absl::string_view key) const {
    const auto changed = changes_.find(key);
    return changed != changes_.end() ? changed->second.get() : FindIn(base_, key);
  }

  // A copy to change, null where there is none.
  Record* Edit(absl::string_view key) {
    const auto changed = changes_.find(key);
    if (changed != changes_.end()) return changed->second.get();
    const Record* const record = FindIn(base_, key);
    if (record == nullptr) return nullptr;
    return changes_.emplace(std::string(key), std::make_shared<Record>(*record))
        .first->second.get();
  }

  // An empty one, in place of what there may be.
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

  // By key.
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

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_TABLES_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/bounds.h"
#include "server/state/keys.h"
#include "server/state/state.h"

namespace nibble {
namespace {

std::string Named(v1::EntityKind kind, absl::string_view key) {
  return absl::StrCat("entity ", v1::EntityKind_Name(kind), " '", key, "'");
}

// The key that a record is to have, where it says so itself.
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
        absl::StrCat(Named(kind, key), ": ", value.size(), " bytes are not one"));
  }
  const absl::Status bounds = CheckBounds(*record);
  if (!bounds.ok()) {
    return absl::DataLossError(absl::StrCat(Named(kind, key), ": ", bounds.message()));
  }
  const std::optional<std::string> own = KeyOf(*record);
  if (own && *own != key) {
    return absl::DataLossError(absl::StrCat(Named(kind, key), ": says that it is '", *own, "'"));
  }
  if (table.contains(key)) {
    return absl::DataLossError(absl::StrCat(Named(kind, key), ": is there twice"));
  }
  table.Put(std::string(key), std::move(record));
  return absl::OkStatus();
}

absl::Status Missing(v1::EntityKind kind, absl::string_view key) {
  return absl::DataLossError(absl::StrCat(Named(kind, key), ": is missing"));
}

// Everything that is looked up without asking whether it is there.
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
  absl::Status status = CheckReferences(state.tables_);
  if (!status.ok()) return status;
  VisitTables(state.tables_, state.tables_,
              [&state](v1::EntityKind, const auto& table, const auto&) {
                for (const auto& [key, record] : table) state.index_.Add(key, *record);
              });
  return state;
}

}  // namespace nibble

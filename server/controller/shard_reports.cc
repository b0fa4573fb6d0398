#include "server/controller/shard_reports.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/controller/checkpoint_care.h"
#include "server/controller/log.h"
#include "server/controller/worker_claims.h"
#include "server/state/decide.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

std::string SubjectOfClaim(const v1::CheckpointRef& ref) {
  return absl::StrCat("job ", ref.job(), " step ", ref.step());
}

// `ours`: the store, in whose present epoch the shard was ordered.
void AddDropped(const v1::ShardReport& shard, v1::DeletionKind kind, const char* reason,
                const v1::StoreIdentity& ours, v1::ConnectResponse& desired) {
  v1::DroppedShard& dropped = *desired.add_dropped();
  *dropped.mutable_ref() = shard.ref();
  dropped.set_rank(shard.rank());
  dropped.set_kind(kind);
  dropped.set_reason(reason);
  *dropped.mutable_order() = EpochOf(ours);
}

}  // namespace

void LogUnlessStale(const std::string& what, const absl::Status& status) {
  if (status.ok() || absl::IsAborted(status) || absl::IsNotFound(status) ||
      absl::IsPermissionDenied(status)) {
    return;
  }
  Log(LogLevel::kWarning, absl::StrCat(what, ": ", status.ToString()));
}

void ShardReports::TakeDamage(WorkerSession& session, const v1::ConnectRequest& report) {
  const std::string& reader = report.identity().name();
  for (const v1::DamagedShard& damage : report.damaged()) {
    const bool ordered =
        session.WasOrderedCopy(damage.ref(), damage.rank()) || session.WasOrderedTask(damage.ref());
    bool given_up = false;
    absl::Status claim;
    context_.ledger.ChangeUnawaited(
        [&](const State& state) -> MaybeUpdate {
          claim = CheckDamageClaim(state, reader, damage, ordered);
          if (!claim.ok()) return std::nullopt;
          MaybeUpdate update = DecideDamage(state, damage, context_.coordinator());
          given_up =
              update.ok() && update->has_value() && (*update)->facts(0).has_shard_holder_set();
          return update;
        },
        absl::StrCat("damage reported by ", reader));
    if (!claim.ok()) {
      if (!session.BeforeOrders()) session.Refuse(SubjectOfClaim(damage.ref()), claim);
      continue;
    }
    Log(LogLevel::kWarning,
        absl::StrCat("the copy on ", damage.holder(), " of the shard of rank ", damage.rank(),
                     " of the ", CheckpointText(damage.ref()), " is damaged, as ", reader,
                     " reports: ", damage.detail()));
    if (!given_up) continue;
    // The holder reports the copy until it gets the order to drop it.
    for (const auto& session : sessions_.Of(damage.holder())) {
      session->NoteDamaged(ShardKey(damage.ref(), damage.rank()));
    }
    sessions_.Notify({damage.holder()});
  }
}

void ShardReports::TakeShards(WorkerSession& session, const v1::ConnectRequest& report) {
  const std::string& worker = report.identity().name();
  const auto log = [worker](const absl::Status& status) {
    LogUnlessStale(absl::StrCat("shard reported by ", worker), status);
  };
  for (const v1::ShardReport& shard : report.shards()) {
    const bool ordered = session.WasOrderedCopy(shard.ref(), shard.rank());
    absl::Status claim;
    context_.ledger.Change(
        [&](const State& state) -> MaybeUpdate {
          if (IsOutlived(state, shard)) return std::nullopt;
          // The copy is surplus, or the worker was ordered to drop it before this report.
          if (IsUnwanted(state, worker, shard, context_.options.copies) ||
              session.IsStale(ShardKey(shard.ref(), shard.rank()), report.desired_number())) {
            return std::nullopt;
          }
          claim = CheckShardClaim(state, worker, shard, ordered);
          if (!claim.ok()) return std::nullopt;
          MaybeUpdate update = DecideShardReport(state, worker, shard, context_.coordinator());
          if (absl::IsPermissionDenied(update.status())) claim = update.status();
          return update;
        },
        log);
    if (!claim.ok() && !session.BeforeOrders()) {
      session.Refuse(SubjectOfClaim(shard.ref()), claim);
    }
  }
  if (report.all_shards()) {
    std::vector<v1::ShardReport> shards(report.shards().begin(), report.shards().end());
    // Shards of an adopted job are reported as orphans until the worker learns of the adoption.
    for (const v1::Orphan& orphan : report.orphans()) {
      shards.insert(shards.end(), orphan.shards().begin(), orphan.shards().end());
    }
    context_.ledger.Change(
        [&](const State& state) {
          return DecideShardInventory(state, worker, shards, context_.coordinator());
        },
        log);
  }
  TakeLoose(session, report);
  session.NoteShards(report);
}

void ShardReports::TakeLoose(WorkerSession& session, const v1::ConnectRequest& report) {
  const std::string& worker = report.identity().name();
  const std::shared_ptr<const State> decided = context_.ledger.Decided();
  context_.trash.Take(worker, report, [&](const v1::ShardReport& shard) {
    return decided->FindJob(shard.ref().job()) != nullptr &&
           decided->FindCheckpoint(shard.ref()) == nullptr &&
           !session.IsStale(ShardKey(shard.ref(), shard.rank()), report.desired_number());
  });
  for (const std::string& job : context_.trash.StoredJobs(worker)) {
    const auto deletions = decided->DeletionsOf(job);
    if (std::none_of(deletions.begin(), deletions.end(),
                     [](const auto* deletion) { return deletion->restore_ordered(); })) {
      continue;
    }
    context_.ledger.ChangeUnawaited(
        [&](const State& state) {
          return DecideRestored(state, job, context_.trash.Of(job), context_.coordinator());
        },
        absl::StrCat("restoration of a checkpoint of ", job));
  }
}

void ShardReports::AddDropOrders(const State& shown, WorkerSession& session,
                                 const WorkerSession::Snapshot& snapshot,
                                 v1::ConnectResponse& desired) {
  // The first report of a stream may begin a new epoch, because it shows that the store is an older
  // copy of itself. Before that report is durable, `shown` may be of the epoch before, in which
  // "not in the catalogue" would still be a reason to delete: no order may follow from it.
  if (snapshot.answered == 0) return;
  AddDeleted(shown, session, snapshot, desired);
  AddSurplus(shown, session, snapshot, desired);
  AddDamaged(shown, session, snapshot, desired);
  for (v1::CheckpointRef& ref : context_.trash.TrashOn(snapshot.worker)) {
    const v1::CheckpointDeletion* const deletion = shown.FindDeletion(ref);
    if (deletion == nullptr || !deletion->restore_ordered()) continue;
    *desired.add_restores()->mutable_ref() = std::move(ref);
  }
}

void ShardReports::AddDeleted(const State& shown, WorkerSession& session,
                              const WorkerSession::Snapshot& snapshot,
                              v1::ConnectResponse& desired) {
  std::vector<v1::ShardReport> durably;
  for (const v1::ShardReport& shard : snapshot.shards) {
    if (!DroppedShards(shown, {&shard, 1}).empty()) durably.push_back(shard);
  }
  if (durably.empty()) return;
  // Checks again on the decided state, where the checkpoint may be about to be restored. Under the
  // ledger's lock, so that a restoration that is decided later does not count on these shards.
  context_.ledger.BetweenDecisions([&](const State& decided) {
    for (v1::DroppedShard& shard : DroppedShards(decided, durably)) {
      session.NoteDropOrder(ShardKey(shard.ref(), shard.rank()), snapshot.number);
      context_.trash.NoteDropped(snapshot.worker, shard.ref(), shard.rank());
      *desired.add_dropped() = std::move(shard);
    }
  });
}

void ShardReports::AddSurplus(const State& shown, WorkerSession& session,
                              const WorkerSession::Snapshot& snapshot,
                              v1::ConnectResponse& desired) {
  const auto unwanted = [&](const State& state, const std::vector<v1::ShardReport>& shards) {
    std::vector<v1::ShardReport> found;
    for (const v1::ShardReport& shard : shards) {
      if (SameEpoch(shard.store(), state.store()) &&
          IsUnwanted(state, snapshot.worker, shard, context_.options.copies)) {
        found.push_back(shard);
      }
    }
    return found;
  };
  const std::vector<v1::ShardReport> durably = unwanted(shown, snapshot.shards);
  if (durably.empty()) return;
  // Checks again on the decided state, where a worker may be lost and this copy needed again. Under
  // the ledger's lock, so that the decisions about later reports see the order.
  context_.ledger.BetweenDecisions([&](const State& decided) {
    for (const v1::ShardReport& shard : unwanted(decided, durably)) {
      session.NoteDropOrder(ShardKey(shard.ref(), shard.rank()), snapshot.number);
      AddDropped(shard, v1::DELETION_KIND_SURPLUS, "enough other workers have a copy",
                 decided.store(), desired);
    }
  });
}

void ShardReports::AddDamaged(const State& shown, WorkerSession& session,
                              const WorkerSession::Snapshot& snapshot,
                              v1::ConnectResponse& desired) {
  std::set<std::string> damaged = session.damaged();
  if (damaged.empty()) return;
  // Only copies whose removal from its holdings is durable.
  for (const std::string& key : shown.index().ShardsOn(snapshot.worker)) damaged.erase(key);
  for (const v1::ShardReport& shard : snapshot.shards) {
    const std::string key = ShardKey(shard.ref(), shard.rank());
    if (!damaged.contains(key)) continue;
    // What another epoch ordered is dropped only once the worker has it by order of this one.
    if (!SameEpoch(shard.store(), shown.store())) {
      damaged.erase(key);
      continue;
    }
    // Before TakeDamaged, so that reports about the copy stay stale throughout.
    session.NoteDropOrder(key, snapshot.number);
    AddDropped(shard, v1::DELETION_KIND_DAMAGED,
               "this copy is damaged, and another worker has a good one", shown.store(), desired);
  }
  session.TakeDamaged(damaged);
}

}  // namespace nibble

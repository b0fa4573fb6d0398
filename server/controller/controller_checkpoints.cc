// Checkpoints and orphans: workers' reports about them, orders to workers, retention.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/controller.h"
#include "server/controller/log.h"
#include "server/state/decide.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {

void Controller::AddDropped(const v1::ShardReport& shard, v1::ConnectResponse& desired) {
  v1::DroppedShard& dropped = *desired.add_dropped();
  *dropped.mutable_ref() = shard.ref();
  dropped.set_rank(shard.rank());
}

void Controller::CheckStoreIsNewest(const v1::ConnectRequest& report) {
  int64_t told = opened_sequence_;
  {
    std::lock_guard lock(mutex_);
    const auto at = told_sequence_.find(report.identity().name());
    if (at != told_sequence_.end()) told = std::max(told, at->second);
  }
  ChangeAlone(
      [&](const State& state) { return DecideStoreBehind(state, report, told, CoordinatorNow()); },
      absl::StrCat("store identity of ", report.identity().name()));
}

void Controller::TakeOrphans(const v1::ConnectRequest& report) {
  if (!report.all_shards()) return;
  const std::string& worker = report.identity().name();
  orphans_.Take(worker, report,
                ledger_->ReadDecided([](const State& state) { return state.store(); }));
  std::set<std::string> left;
  for (const std::string& job : orphans_.JobsOn(worker)) {
    left.insert(job);
    const OrphanBook::Holdings holdings = orphans_.Of(job);
    ChangeAlone(
        [&](const State& state) {
          return DecideRecover(state, job, holdings.evidence(), CoordinatorNow());
        },
        absl::StrCat("recovery of ", job, " from ", worker));
  }
  ChangeAlone(
      [&](const State& state) { return DecideRemovalsDone(state, worker, left, CoordinatorNow()); },
      absl::StrCat("removals on ", worker));
}

void Controller::AddOrphanOrders(const State& state, const std::string& worker,
                                 v1::ConnectResponse& desired) const {
  for (const v1::OrphanRemoval* removal : state.RemovalsOn(worker)) {
    if (state.FindJob(removal->job()) != nullptr) continue;
    v1::OrphanOrder& order = *desired.add_orphans();
    order.set_job(removal->job());
    *order.mutable_store() = removal->store();
  }
  // A wanted copy: from now on the worker has it by an order of this store.
  for (const v1::ShardReport& shard : orphans_.ShardsOn(worker)) {
    const v1::CheckpointShard* const known = state.FindShard(shard.ref(), shard.rank());
    if (known == nullptr || known->manifest_crc32c() != shard.manifest_crc32c()) continue;
    v1::DesiredReplica& wanted = *desired.add_replicas();
    *wanted.mutable_ref() = shard.ref();
    wanted.set_rank(shard.rank());
    wanted.set_manifest_crc32c(shard.manifest_crc32c());
  }
  // Ranks of a known job outside its living attempt end with a checkpoint, from which the next
  // attempt resumes.
  for (const std::string& id : orphans_.JobsOn(worker)) {
    const v1::JobRecord* const job = state.FindJob(id);
    const int64_t attempt = orphans_.RunningOn(worker, id);
    if (job == nullptr || attempt == 0) continue;
    if (job->has_attempt() && job->attempt().number() == attempt) continue;
    const OrphanBook::Holdings holdings = orphans_.Of(id);
    for (const OrphanEvidence& one : holdings.evidence()) {
      if (one.worker != worker || !IsOwn(state, *job, one.orphan->store())) continue;
      v1::DesiredGang& gang = *desired.add_gangs();
      gang.set_job(id);
      gang.set_attempt(attempt);
      gang.set_command(v1::GANG_COMMAND_STOP);
      gang.set_stop_by_unix_ms(clock_.NowUnixMs() + kDefaultGraceMs);
      gang.set_stop_within_ms(kDefaultGraceMs);
    }
  }
}

void Controller::TakeDamage(const v1::ConnectRequest& report) {
  const std::string& reader = report.identity().name();
  for (const v1::DamagedShard& damage : report.damaged()) {
    bool given_up = false;
    ledger_->Change(
        [&](const State& state) -> MaybeUpdate {
          MaybeUpdate update = DecideDamage(state, damage, CoordinatorNow());
          given_up =
              update.ok() && update->has_value() && (*update)->facts(0).has_shard_holder_set();
          return update;
        },
        [reader](const absl::Status& status) {
          if (status.ok()) return;
          Log(LogLevel::kWarning, absl::StrCat("damage met by ", reader, ": ", status.ToString()));
        });
    Log(LogLevel::kWarning, absl::StrCat("the copy on ", damage.holder(), " of the shard of rank ",
                                         damage.rank(), " of the ", CheckpointText(damage.ref()),
                                         " is damaged, says ", reader, ": ", damage.detail()));
    if (!given_up) continue;
    // The holder reports the copy until it gets the order to drop it.
    std::vector<std::function<void()>> notify;
    {
      std::lock_guard lock(mutex_);
      const auto [begin, end] = session_of_.equal_range(damage.holder());
      for (auto at = begin; at != end; ++at) {
        at->second->damaged_.insert(ShardKey(damage.ref(), damage.rank()));
      }
      AddNotify(damage.holder(), notify);
    }
    for (const std::function<void()>& call : notify) call();
  }
}

void Controller::TakeShards(const std::shared_ptr<WorkerSession>& session,
                            const v1::ConnectRequest& report) {
  const std::string& worker = report.identity().name();
  const auto log = [worker](const absl::Status& status) {
    if (IsStale(status)) return;
    Log(LogLevel::kWarning, absl::StrCat("shard of ", worker, ": ", status.ToString()));
  };
  for (const v1::ShardReport& shard : report.shards()) {
    ledger_->Change(
        [&](const State& state) -> MaybeUpdate {
          if (IsOutlived(state, shard)) return std::nullopt;
          // The copy is surplus, or the worker was ordered to drop it before this report.
          if (IsUnwanted(state, worker, shard, options_.copies)) return std::nullopt;
          {
            std::lock_guard lock(mutex_);
            const std::string key = ShardKey(shard.ref(), shard.rank());
            if (session->damaged_.contains(key)) return std::nullopt;
            const auto told = session->told_.find(key);
            if (told != session->told_.end() && report.desired_number() < told->second) {
              return std::nullopt;
            }
          }
          return DecideShardReport(state, worker, shard, CoordinatorNow());
        },
        log);
  }
  if (report.all_shards()) {
    std::vector<v1::ShardReport> shards(report.shards().begin(), report.shards().end());
    // Shards of an adopted job are reported as orphans until the worker learns of the adoption.
    for (const v1::Orphan& orphan : report.orphans()) {
      shards.insert(shards.end(), orphan.shards().begin(), orphan.shards().end());
    }
    ledger_->Change(
        [&](const State& state) {
          return DecideShardInventory(state, worker, shards, CoordinatorNow());
        },
        log);
  }
  std::lock_guard lock(mutex_);
  std::erase_if(session->told_,
                [&](const auto& told) { return told.second <= report.desired_number(); });
  if (report.all_shards()) session->held_.clear();
  for (const v1::ShardReport& shard : report.shards()) {
    session->held_[ShardKey(shard.ref(), shard.rank())] = shard;
  }
}

void Controller::AddSurplus(const std::shared_ptr<WorkerSession>& session,
                            const std::string& worker, const std::vector<v1::ShardReport>& held,
                            v1::ConnectResponse& desired) {
  const auto unwanted = [&](const State& state, const std::vector<v1::ShardReport>& shards) {
    std::vector<v1::ShardReport> found;
    for (const v1::ShardReport& shard : shards) {
      if (IsUnwanted(state, worker, shard, options_.copies)) found.push_back(shard);
    }
    return found;
  };
  const std::vector<v1::ShardReport> durably =
      ledger_->Read([&](const State& state) { return unwanted(state, held); });
  if (durably.empty()) return;
  // Checks again on the decided state, where a worker may be lost and this copy needed again. Under
  // the ledger's lock, so that later reports see the order in told_.
  ledger_->BetweenDecisions([&](const State& state) {
    std::lock_guard lock(mutex_);
    for (const v1::ShardReport& shard : unwanted(state, durably)) {
      session->told_[ShardKey(shard.ref(), shard.rank())] = desired.number();
      AddDropped(shard, desired);
    }
  });
}

void Controller::AddDamaged(const std::shared_ptr<WorkerSession>& session,
                            const std::string& worker, const std::vector<v1::ShardReport>& held,
                            v1::ConnectResponse& desired) {
  std::set<std::string> damaged;
  {
    std::lock_guard lock(mutex_);
    damaged = session->damaged_;
  }
  if (damaged.empty()) return;
  // Only copies that it durably no longer holds.
  ledger_->Read([&](const State& state) {
    for (const std::string& key : state.index().ShardsOn(worker)) damaged.erase(key);
  });
  std::lock_guard lock(mutex_);
  for (const std::string& key : damaged) session->damaged_.erase(key);
  for (const v1::ShardReport& shard : held) {
    const std::string key = ShardKey(shard.ref(), shard.rank());
    if (!damaged.contains(key)) continue;
    session->told_[key] = desired.number();
    AddDropped(shard, desired);
  }
}

void Controller::CareForCheckpoints() {
  TrimCheckpoints();
  {
    std::lock_guard lock(mutex_);
    for (const std::string& job : std::exchange(to_care_for_, {})) care_.JobChanged(job);
    if (std::exchange(workers_changed_, false)) care_.WorkersChanged();
  }
  if (!care_.behind()) return;
  // Works on the durable state only.
  const bool other_work = ledger_->Read([this](const State& state) { return care_.Step(state); });
  for (const std::string& job : care_.TakeSurplus()) GiveUpSurplus(job);
  if (!other_work) return;
  std::map<std::string, CheckpointWork> work = care_.Work();
  std::vector<std::function<void()>> notify;
  {
    std::lock_guard lock(mutex_);
    work_ = std::move(work);
    for (const auto& [worker, its_work] : work_) AddNotify(worker, notify);
  }
  for (const auto& call : notify) call();
}

void Controller::TrimCheckpoints() {
  std::set<std::string> jobs;
  {
    std::lock_guard lock(mutex_);
    jobs.swap(to_trim_);
  }
  for (const std::string& job : jobs) {
    const std::vector<v1::CheckpointRef> beyond =
        ledger_->ReadDecided([&](const State& state) { return BeyondRetention(state, job); });
    for (const v1::CheckpointRef& ref : beyond) {
      ChangeAlone([&](const State& state) { return DecideRetention(state, ref, CoordinatorNow()); },
                  absl::StrCat("retention of ", job));
    }
  }
}

void Controller::GiveUpSurplus(const std::string& job) {
  ledger_->Change(
      [&](const State& state) {
        return DecideSurplus(state, job, options_.copies, CoordinatorNow());
      },
      [this, job](const absl::Status& status) {
        if (status.ok()) return;
        Log(LogLevel::kWarning, absl::StrCat("surplus of ", job, ": ", status.ToString()));
        std::lock_guard lock(mutex_);
        to_care_for_.insert(job);
      });
}

}  // namespace nibble

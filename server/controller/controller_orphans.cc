// Whose orders workers follow, and what the store learns again from them.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/controller.h"
#include "server/controller/log.h"
#include "server/state/decide_orphans.h"
#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/limits.h"

namespace nibble {

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
  // A copy that is wanted where it is: the worker holds it by this store's order from now on.
  for (const v1::ShardReport& shard : orphans_.ShardsOn(worker)) {
    const v1::CheckpointShard* const known = state.FindShard(shard.ref(), shard.rank());
    if (known == nullptr || known->manifest_crc32c() != shard.manifest_crc32c()) continue;
    v1::DesiredReplica& wanted = *desired.add_replicas();
    *wanted.mutable_ref() = shard.ref();
    wanted.set_rank(shard.rank());
    wanted.set_manifest_crc32c(shard.manifest_crc32c());
  }
  // Ranks of a known job that are not its living attempt's: they end with a checkpoint, which the
  // next attempt resumes from.
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

std::string Controller::WhyNotLaunched(const State& state, const v1::JobRecord& job) const {
  const std::string stray =
      orphans_.StrayOf(job.id(), job.has_attempt() ? job.attempt().number() : 0);
  if (!stray.empty()) {
    return absl::StrCat("waits for the ranks on ", stray,
                        " that it was adopted with to end with a checkpoint");
  }
  const int64_t restored_ms = restored_ms_.load();
  const int64_t since_ms = clock_.SteadyMs() - restored_ms;
  if (restored_ms == 0 || since_ms < 0 || since_ms > options_.lease_ms) return "";
  return absl::StrCat("waits for workers to report what they have: the store is in epoch ",
                      state.store().epoch(), " since ", since_ms, " ms");
}

std::map<std::string, std::string> Controller::HeldForRecovery(const State& state) const {
  std::map<std::string, std::string> held;
  if (restored_ms_ == 0 && orphans_.empty()) return held;
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if (job.has_attempt() || job.state() == v1::JOB_STATE_PAUSED) continue;
    std::string why = WhyNotLaunched(state, job);
    if (!why.empty()) held[id] = std::move(why);
  }
  return held;
}

}  // namespace nibble

#include "server/controller/recovery.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/controller/log.h"
#include "server/controller/store_seal.h"
#include "server/controller/worker_claims.h"
#include "server/state/decide.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

constexpr size_t kShownOfStore = 8;  // digits of its id

}  // namespace

Recovery::Recovery(const ControllerContext& context)
    : context_(context), opened_ms_(context.clock.SteadyMs()) {}

std::optional<v1::StoreIdentity> Recovery::NoteEpoch(const v1::Update& update) {
  std::optional<v1::StoreIdentity> store;
  for (const v1::Fact& fact : update.facts()) {
    if (fact.has_store_replaced()) {
      Log(LogLevel::kError, absl::StrCat("this coordinator was replaced, and changes nothing more: ",
                                         fact.store_replaced().reason()));
    }
    if (!fact.has_store_restored()) continue;
    const v1::StoreRestored& restored = fact.store_restored();
    store.emplace();
    store->set_id(restored.store_id());
    store->set_epoch(restored.epoch());
    store->set_epoch_id(restored.epoch_id());
    if (store->epoch() == 1) continue;
    restored_ms_ = std::max<int64_t>(1, context_.clock.SteadyMs());
    Log(LogLevel::kWarning,
        absl::StrCat("epoch ", store->epoch(), " of the store begins (", restored.reason(),
                     "); newer jobs and checkpoints are adopted from the workers' reports"));
  }
  return store;
}

absl::Status Recovery::CheckStore(WorkerSession& session, const v1::ConnectRequest& report) {
  const std::string& worker = report.identity().name();
  bool began = false;
  {
    MutexLock lock(&mutex_);
    began = began_epoch_.contains(worker);
  }
  absl::Status refused;
  bool begins = false;
  context_.ledger.ChangeUnawaited(
      [&](const State& state) -> MaybeUpdate {
        MaybeUpdate update = DecideStoreSeen(
            state,
            {.worker = worker,
             .seen = report.store(),
             .authentic = [&] { return IsSealed(state, report.store()); },
             .began = began,
             .restored = context_.options.restored},
            context_.options.fresh_id ? context_.options.fresh_id() : "", context_.coordinator());
        begins = update.ok() && update->has_value() && (*update)->facts(0).has_store_restored();
        if (!absl::IsPermissionDenied(update.status())) return update;
        refused = update.status();
        return std::nullopt;
      },
      absl::StrCat("store identity reported by ", worker));
  if (!refused.ok()) session.Refuse("worker " + worker, refused);
  if (begins) {
    MutexLock lock(&mutex_);
    began_epoch_.insert(worker);
  }
  return context_.ledger.ReadDecided([](const State& state) { return state.Replaced(); });
}

void Recovery::TakeOrphans(WorkerSession& session, const v1::ConnectRequest& report) {
  if (!report.all_shards()) return;
  const std::string& worker = report.identity().name();
  const std::shared_ptr<const State> decided = context_.ledger.Decided();
  std::map<std::string, absl::Status> refused;  // by job
  context_.orphans.Replace(worker, report, decided->store(),
                           [&](const std::string& job, const v1::StoreIdentity& store) {
                             absl::Status status = CheckOrphanClaim(*decided, worker, job, store);
                             if (status.ok()) return true;
                             refused.emplace(job, std::move(status));
                             return false;
                           });
  for (const auto& [job, why] : refused) session.Refuse("job " + job, why);
  const std::set<std::string> jobs = context_.orphans.JobsOn(worker);
  for (const std::string& job : jobs) {
    const OrphanRegistry::Holdings holdings = context_.orphans.Of(job);
    context_.ledger.ChangeUnawaited(
        [&](const State& state) {
          return DecideRecover(state, job, holdings.evidence(), context_.coordinator());
        },
        absl::StrCat("recovery of ", job, " from ", worker));
  }
  context_.ledger.ChangeUnawaited(
      [&](const State& state) {
        return DecideRemovalsDone(state, worker, jobs, context_.coordinator());
      },
      absl::StrCat("removals on ", worker));
}

void Recovery::AddOrders(const State& state, const std::string& worker,
                         v1::ConnectResponse& desired) const {
  for (const v1::OrphanRemoval* removal : state.RemovalsOn(worker)) {
    if (state.FindJob(removal->job()) != nullptr) continue;
    v1::OrphanOrder& order = *desired.add_orphans();
    order.set_job(removal->job());
    *order.mutable_store() = removal->store();
  }
  // A wanted copy: from now on the worker stores it by an order of this store. Until its checkpoint
  // is committed it stays as it was ordered: the end of the attempt must not drop it.
  for (const v1::ShardReport& shard : context_.orphans.ShardsOn(worker)) {
    const v1::Checkpoint* const checkpoint = state.FindCheckpoint(shard.ref());
    if (checkpoint == nullptr || checkpoint->state() == v1::CHECKPOINT_STATE_WRITING) continue;
    const v1::CheckpointShard* const known = state.FindShard(shard.ref(), shard.rank());
    if (known == nullptr || known->manifest_crc32c() != shard.manifest_crc32c()) continue;
    const std::string& job = shard.ref().job();
    if (!IsOwn(state, *state.FindJob(job), shard.store()) ||
        !CheckOrphanClaim(state, worker, job, shard.store()).ok()) {
      continue;
    }
    v1::DesiredReplica& wanted = *desired.add_replicas();
    *wanted.mutable_ref() = shard.ref();
    wanted.set_rank(shard.rank());
    wanted.set_manifest_crc32c(shard.manifest_crc32c());
  }
  // Ranks of a known job outside its living attempt end with a checkpoint, from which the next
  // attempt resumes.
  for (const std::string& id : context_.orphans.JobsOn(worker)) {
    const v1::JobRecord* const job = state.FindJob(id);
    const int64_t attempt = context_.orphans.RunningOn(worker, id);
    if (job == nullptr || attempt == 0) continue;
    if (job->has_attempt() && job->attempt().number() == attempt) continue;
    const OrphanRegistry::Holdings holdings = context_.orphans.Of(id);
    for (const OrphanEvidence& one : holdings.evidence()) {
      if (one.worker != worker || !IsOwn(state, *job, one.orphan->store())) continue;
      v1::DesiredGang& gang = *desired.add_gangs();
      gang.set_job(id);
      gang.set_attempt(attempt);
      gang.set_command(v1::GANG_COMMAND_STOP);
      const int64_t within_ms =
          MayCommit(*job, worker, attempt, holdings.evidence()) ? kDefaultGraceMs : 1;
      gang.set_stop_by_unix_ms(context_.clock.NowUnixMs() + within_ms);
      gang.set_stop_within_ms(within_ms);
    }
  }
}

bool Recovery::MayCommit(const v1::JobRecord& job, const std::string& worker, int64_t attempt,
                         Evidence evidence) const {
  // An adopted attempt has no placements.
  const auto is_theirs = [&](const v1::Attempt& ended) {
    return ended.number() == attempt &&
           std::any_of(ended.placements().begin(), ended.placements().end(),
                       [&worker](const auto& placement) { return placement.worker() == worker; });
  };
  const auto& recent = job.recent_attempts();
  if (std::any_of(recent.begin(), recent.end(), is_theirs)) return false;
  const int64_t now_ms = context_.clock.SteadyMs();
  const int64_t all_report_by_ms =
      std::max(opened_ms_, restored_ms_.load()) + context_.options.lease_ms;
  if (now_ms <= all_report_by_ms) return true;
  const auto& sizes = job.scheduling().allowed_ranks();
  int64_t world = sizes.size() == 1 ? sizes[0] : 0;
  for (const OrphanEvidence& one : evidence) {
    for (const v1::ShardReport& shard : one.orphan->shards()) {
      if (shard.ref().attempt() == attempt) world = shard.world();
    }
  }
  // Unknown: 0.
  return context_.orphans.RanksOf(job.id(), attempt).value_or(world) >= world;
}

std::string Recovery::WhyNotLaunched(const State& state, const v1::JobRecord& job) const {
  const std::string stray = context_.orphans.StrayOf(
      job.id(), job.has_attempt() ? job.attempt().number() : 0,
      [&](const v1::StoreIdentity& store) { return IsOwn(state, job, store); });
  if (!stray.empty()) {
    return absl::StrCat("waits until the ranks on ", stray,
                        " with which it was adopted have ended with a checkpoint");
  }
  const int64_t restored_ms = restored_ms_.load();
  const int64_t since_ms = context_.clock.SteadyMs() - restored_ms;
  if (restored_ms == 0 || since_ms < 0 || since_ms > context_.options.lease_ms) return "";
  return absl::StrCat("waits for workers to report their jobs and checkpoints: epoch ",
                      state.store().epoch(), " of the store began ", since_ms, " ms ago");
}

std::map<std::string, std::string> Recovery::HeldBack(const State& state) const {
  std::map<std::string, std::string> held;
  if (restored_ms_ == 0 && context_.orphans.empty()) return held;
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if (job.has_attempt() || job.state() == v1::JOB_STATE_PAUSED) continue;
    std::string why = WhyNotLaunched(state, job);
    if (!why.empty()) held[id] = std::move(why);
  }
  return held;
}

std::map<std::string, std::string> Recovery::TakenFor(const State& state,
                                                      const v1::JobRecord& job) const {
  std::map<std::string, std::string> taken;
  const auto namesakes = context_.orphans.NamesakesOf(
      job.id(), [&](const v1::StoreIdentity& store) { return IsOwn(state, job, store); });
  for (const auto& [worker, namesake] : namesakes) {
    taken[worker] = absl::StrCat(
        "not on ", worker, ", where another job with the id ", job.id(), ", of store ",
        namesake.store.substr(0, kShownOfStore), namesake.running ? ", runs" : ", has checkpoints",
        " in the same directory; cancel this one and submit it again to give it another id");
  }
  return taken;
}

std::map<std::string, std::map<std::string, std::string>> Recovery::Taken(
    const State& state) const {
  std::map<std::string, std::map<std::string, std::string>> taken;
  for (const std::string& id : context_.orphans.Jobs()) {
    const v1::JobRecord* const job = state.FindJob(id);
    if (job == nullptr || IsFinished(job->state())) continue;
    std::map<std::string, std::string> workers = TakenFor(state, *job);
    if (!workers.empty()) taken[id] = std::move(workers);
  }
  return taken;
}

}  // namespace nibble

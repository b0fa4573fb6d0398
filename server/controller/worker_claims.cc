#include "server/controller/worker_claims.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/state/decide.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

absl::Status NotGiven(const std::string& worker, const std::string& what, const std::string& why) {
  return absl::PermissionDeniedError(
      absl::StrCat("worker: '", worker, "' reports ", what, ", ", why));
}

bool HasRank(const v1::Placement& placement, int32_t rank) {
  return placement.first_rank() <= rank && rank < placement.first_rank() + placement.slots_size();
}

// The worker's place in the job's live attempt; null if it has none.
const v1::Placement* PlaceOf(const v1::JobRecord* job, const std::string& worker) {
  if (job == nullptr || !job->has_attempt()) return nullptr;
  for (const v1::Placement& placement : job->attempt().placements()) {
    if (placement.worker() == worker) return &placement;
  }
  return nullptr;
}

// Whether ranks on the worker began from the checkpoint.
bool BeganFrom(const State& state, const std::string& worker, const v1::CheckpointRef& ref) {
  const std::string key = CheckpointKey(ref);
  const auto begins = [&](const v1::JobRecord* job) {
    return PlaceOf(job, worker) != nullptr && job->attempt().has_resume() &&
           CheckpointKey(job->attempt().resume()) == key;
  };
  if (begins(state.FindJob(ref.job()))) return true;
  const auto& forks = state.index().ForksOf(key);
  return std::any_of(forks.begin(), forks.end(),
                     [&](const std::string& fork) { return begins(state.FindJob(fork)); });
}

bool HoldsIt(const v1::CheckpointShard& shard, const std::string& worker) {
  return std::find(shard.holders().begin(), shard.holders().end(), worker) != shard.holders().end();
}

std::string ShardText(const v1::CheckpointRef& ref, int32_t rank) {
  return absl::StrCat("the shard of rank ", rank, " of the ", CheckpointText(ref));
}

// The name of a field that only rank 0 reports and that is set; empty: none is.
std::string OfRank0(const v1::GangReport& report) {
  if (!report.samples().empty()) return "samples";
  if (!report.revisions().empty()) return "revisions";
  if (!report.refused().empty()) return "refused";
  if (!report.decided().empty()) return "decided";
  if (report.has_precision()) return "precision";
  return report.checkpoint_request() > 0 ? "checkpoint_request" : "";
}

}  // namespace

absl::Status CheckGangClaim(const State& state, const std::string& worker,
                            const v1::GangReport& report) {
  const v1::JobRecord* const job = state.FindJob(report.job());
  if (job == nullptr || !job->has_attempt() || job->attempt().number() != report.attempt()) {
    return absl::OkStatus();
  }
  const std::string gang = absl::StrCat("attempt ", report.attempt(), " of ", report.job());
  const v1::Placement* const place = PlaceOf(job, worker);
  if (place == nullptr) return NotGiven(worker, gang, "which has no ranks there");
  for (const v1::RankHealth& rank : report.ranks()) {
    if (HasRank(*place, rank.rank())) continue;
    return NotGiven(worker, absl::StrCat("rank ", rank.rank(), " of ", gang),
                    absl::StrCat("and has ranks ", place->first_rank(), " to ",
                                 place->first_rank() + place->slots_size() - 1));
  }
  const std::string field = place->first_rank() == 0 ? "" : OfRank0(report);
  if (field.empty()) return absl::OkStatus();
  return NotGiven(
      worker, absl::StrCat(field, " of ", gang),
      absl::StrCat("which only rank 0 reports, on ", job->attempt().placements(0).worker()));
}

absl::Status CheckShardClaim(const State& state, const std::string& worker,
                             const v1::ShardReport& report, bool ordered) {
  const v1::CheckpointShard* const shard = state.FindShard(report.ref(), report.rank());
  if (shard == nullptr || HoldsIt(*shard, worker) || ordered) return absl::OkStatus();
  const v1::JobRecord* const job = state.FindJob(report.ref().job());
  const v1::Placement* const place = PlaceOf(job, worker);
  if (place != nullptr && job->attempt().number() == report.ref().attempt() &&
      HasRank(*place, report.rank())) {
    return absl::OkStatus();
  }
  const v1::StoreIdentity ours = state.store();
  if (report.store().id() == ours.id() && !SameEpoch(report.store(), ours)) {
    return absl::OkStatus();
  }
  return NotGiven(worker, absl::StrCat("a copy of ", ShardText(report.ref(), report.rank())),
                  "which it was not ordered to make");
}

absl::Status CheckDamageClaim(const State& state, const std::string& worker,
                              const v1::DamagedShard& damage, bool ordered) {
  if (damage.holder() == worker || ordered || BeganFrom(state, worker, damage.ref())) {
    return absl::OkStatus();
  }
  return NotGiven(
      worker, absl::StrCat("damage of ", ShardText(damage.ref(), damage.rank())),
      absl::StrCat("of which it was not ordered to read the copy on '", damage.holder(), "'"));
}

absl::Status CheckTaskClaim(const std::string& worker, const v1::TaskReport& report, bool ordered) {
  if (ordered) return absl::OkStatus();
  return NotGiven(
      worker,
      absl::StrCat("the end of task ", report.task(), " of the ", CheckpointText(report.ref())),
      "which it was not ordered to carry out");
}

absl::Status CheckOrphanClaim(const State& state, const std::string& worker, const std::string& job,
                              const v1::StoreIdentity& store) {
  const v1::JobRecord* const known = state.FindJob(job);
  // In the first epoch the store has forgotten nothing of its own jobs. Another store's job with
  // the same id is an orphan of that store.
  if (known == nullptr || state.store().epoch() > 1 || IsAdopted(*known) ||
      !IsOwn(state, *known, store)) {
    return absl::OkStatus();
  }
  return NotGiven(worker, absl::StrCat("an orphan of ", job),
                  "which the store knows, and it was never restored");
}

}  // namespace nibble

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/views.h"

namespace nibble {
namespace {

constexpr size_t kMostRanksNamed = 3;

// What workers have of one checkpoint.
struct LooseCheckpoint {
  int32_t world = 0;
  std::map<int32_t, v1::CheckpointShard> shards;  // by rank; holders: that store it
  std::set<int32_t> contradicted;                 // ranks of which two workers have different ones

  // Ranks of which no shard, or none that is certain, exists; or, if `stored`, is stored.
  std::vector<int32_t> Missing(bool stored) const {
    std::vector<int32_t> missing;
    for (int32_t rank = 0; rank < world; ++rank) {
      const auto shard = shards.find(rank);
      if (shard == shards.end() || contradicted.contains(rank) ||
          (stored && shard->second.holders().empty())) {
        missing.push_back(rank);
      }
    }
    return missing;
  }
};

LooseCheckpoint GatherLoose(const State& state, const v1::CheckpointRef& ref, LooseShards all) {
  const std::string key = CheckpointKey(ref);
  const v1::CheckpointDeletion* const deletion = state.FindDeletion(ref);
  LooseCheckpoint found;
  if (deletion != nullptr) found.world = deletion->world();
  for (const LooseShard& one : all) {
    if (CheckpointKey(one.shard.ref()) != key) continue;
    // Without a record nobody knows how many there are, so each report counts.
    if (deletion == nullptr || deletion->world() == 0) {
      found.world = std::max(found.world, one.shard.world());
    }
    const auto [at, added] = found.shards.try_emplace(one.shard.rank());
    v1::CheckpointShard& shard = at->second;
    if (added) {
      shard.set_rank(one.shard.rank());
      shard.set_bytes(one.shard.bytes());
      shard.set_manifest_crc32c(one.shard.manifest_crc32c());
    } else if (shard.bytes() != one.shard.bytes() ||
               shard.manifest_crc32c() != one.shard.manifest_crc32c()) {
      found.contradicted.insert(one.shard.rank());
    }
    if (!one.trashed && shard.holders_size() < kMaxHolders) shard.add_holders(one.worker);
  }
  return found;
}

// If the reference has no attempt, with the newest one of the step that workers have, or else with
// that of the checkpoint in the catalogue.
v1::CheckpointRef WithAttempt(const State& state, v1::CheckpointRef ref, LooseShards shards) {
  if (ref.attempt() != 0) return ref;
  const absl::StatusOr<v1::CheckpointRef> known = FindCheckpoint(state, ref);
  for (const LooseShard& one : shards) {
    if (one.shard.ref().step() != ref.step()) continue;
    ref.set_attempt(std::max(ref.attempt(), one.shard.ref().attempt()));
  }
  return ref.attempt() == 0 && known.ok() ? *known : ref;
}

absl::Status CheckRestorable(const State& state, const v1::CheckpointRef& ref, LooseShards shards) {
  if (state.FindCheckpoint(ref) != nullptr) return absl::OkStatus();  // refused by its fact
  const LooseCheckpoint found = GatherLoose(state, ref, shards);
  const std::vector<int32_t> missing = found.Missing(false);
  if (found.world > 0 && missing.empty()) return absl::OkStatus();
  constexpr char kRemedy[] = "'nibble checkpoint trash list' shows what they have";
  if (found.shards.empty()) {
    return absl::NotFoundError(absl::StrCat("ref: no present worker has a shard of the ",
                                            CheckpointText(ref), "; ", kRemedy));
  }
  const size_t named = std::min(missing.size(), kMostRanksNamed);
  return absl::NotFoundError(absl::StrCat(
      "ref: of the ", CheckpointText(ref), ", present workers have no certain shard of rank ",
      absl::StrJoin(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(named), ", "),
      named < missing.size() ? absl::StrCat(" and ", missing.size() - named, " more") : "", "; ",
      kRemedy));
}

}  // namespace

absl::StatusOr<Decision<v1::RestoreCheckpointResponse>> Decide(
    const State& state, const v1::RestoreCheckpointRequest& request, const Caller& caller,
    LooseShards shards) {
  return decide::Once<v1::RestoreCheckpointResponse>(
      state, request, caller, [&](v1::Update& update, v1::RestoreCheckpointResponse& response) {
        const v1::JobRecord* const job = state.FindJob(request.ref().job());
        if (job == nullptr) {
          return absl::NotFoundError(
              absl::StrCat("ref.job: there is no '", request.ref().job(), "'"));
        }
        NIBBLE_RETURN_IF_ERROR(
            CheckRange("ref.step", request.ref().step(), 0, job->shape().steps()));
        NIBBLE_RETURN_IF_ERROR(
            CheckRange("ref.attempt", request.ref().attempt(), 0, job->last_attempt()));
        const v1::CheckpointRef ref = WithAttempt(state, request.ref(), shards);
        NIBBLE_RETURN_IF_ERROR(CheckRestorable(state, ref, shards));
        *response.mutable_ref() = ref;
        v1::CheckpointRestoreOrdered& fact =
            *update.add_facts()->mutable_checkpoint_restore_ordered();
        *fact.mutable_ref() = ref;
        fact.set_reason(request.reason());
        return absl::OkStatus();
      });
}

MaybeUpdate DecideRestored(const State& state, const std::string& job, LooseShards shards,
                           const Caller& caller) {
  for (const v1::CheckpointDeletion* deletion : state.DeletionsOf(job)) {
    if (!deletion->restore_ordered() || state.FindCheckpoint(deletion->ref()) != nullptr) continue;
    const LooseCheckpoint found = GatherLoose(state, deletion->ref(), shards);
    if (found.world == 0 || !found.Missing(true).empty()) continue;
    v1::Update update = decide::NextUpdate(state, caller);
    v1::CheckpointAdopted& adopted = *update.add_facts()->mutable_checkpoint_adopted();
    *adopted.mutable_checkpoint()->mutable_ref() = deletion->ref();
    adopted.mutable_checkpoint()->set_world(found.world);
    for (int32_t rank = 0; rank < found.world; ++rank) {
      *adopted.add_shards() = found.shards.at(rank);
    }
    adopted.set_reason(absl::StrCat("restored from the trash by ", deletion->restore_author()));
    // One at a time, since each may have many shards; the next report leads to the next one.
    return decide::Checked(state, std::move(update));
  }
  return std::nullopt;
}

}  // namespace nibble

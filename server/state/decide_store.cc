#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

const v1::ClusterRecord& ClusterOf(const State& state) {
  return *FindIn(state.tables().cluster, kOnlyKey);
}

// Whether the state's history of its present epoch contains the update that a worker has seen.
bool Contains(const State& state, const v1::StoreIdentity& seen) {
  const v1::StoreIdentity ours = state.store();
  if (seen.sequence() > ours.sequence()) return false;
  // A worker from before epochs had ids.
  if (seen.epoch_id().empty()) return seen.epoch() == ours.epoch();
  if (!SameEpoch(seen, ours)) return false;
  const auto& lives = ClusterOf(state).lives();
  const auto at = std::find_if(lives.rbegin(), lives.rend(),
                               [&](const v1::StoreLife& life) { return life.id() == seen.life(); });
  if (at == lives.rend()) return false;
  return at == lives.rbegin() || seen.sequence() < std::prev(at)->first_sequence();
}

}  // namespace

MaybeUpdate DecideStart(const State& state, const std::string& cluster, const FreshIds& fresh,
                        bool restored, const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  const v1::StoreIdentity store = state.store();
  if (state.sequence() == 0 || state.cluster() != cluster) {
    v1::ClusterNamed& named = *update.add_facts()->mutable_cluster_named();
    named.set_name(cluster);
    named.set_store_id(fresh.id);
    named.set_epoch_id(fresh.id);
    named.set_key(fresh.key);
  } else if (fresh.id.empty() || (!restored && !state.Replaced().ok())) {
    return std::nullopt;
  } else if (restored || store.epoch_id().empty()) {
    v1::StoreRestored& fact = *update.add_facts()->mutable_store_restored();
    fact.set_store_id(store.id().empty() ? fresh.id : store.id());
    fact.set_epoch(std::max(store.epoch(), ClusterOf(state).replaced_by().epoch()) + 1);
    fact.set_epoch_id(fresh.id);
    if (ClusterOf(state).key().empty()) fact.set_key(fresh.key);
    fact.set_reason(restored              ? "restored from a backup"
                    : store.id().empty() ? "made before stores had an identity"
                                         : "made before epochs had ids");
  }
  if (!fresh.id.empty()) update.add_facts()->mutable_store_opened()->set_life(fresh.id);
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideStoreSeen(const State& state, const StoreSighting& sighting,
                            const std::string& fresh_id, const Caller& caller) {
  const v1::StoreIdentity ours = state.store();
  const v1::StoreIdentity& seen = sighting.seen;
  if (ours.id().empty() || seen.id() != ours.id() || seen.epoch() < ours.epoch() ||
      Contains(state, seen) || !state.Replaced().ok()) {
    return std::nullopt;
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("store.epoch", seen.epoch(), 1, kMaxCount - 1));
  const std::string what = absl::StrCat(
      "worker ", sighting.worker, " has seen update ", seen.sequence(), " of epoch ", seen.epoch(),
      ", id ", seen.epoch_id(), "; the store ends with update ", ours.sequence(), " of epoch ",
      ours.epoch(), ", id ", ours.epoch_id());
  if (!sighting.authentic()) {
    return absl::PermissionDeniedError(
        absl::StrCat("store: ", what, ", which has not issued what the worker shows"));
  }
  bool replaced = false;
  if (seen.epoch() > ours.epoch()) {
    replaced = sighting.began || !sighting.restored;
  } else if (!SameEpoch(seen, ours)) {
    replaced = sighting.began && seen.epoch_id() > ours.epoch_id();
  }
  v1::Update update = decide::NextUpdate(state, caller);
  if (replaced) {
    v1::StoreReplaced& fact = *update.add_facts()->mutable_store_replaced();
    *fact.mutable_by() = EpochOf(seen);
    fact.set_reason(OneLine(what));
  } else {
    v1::StoreRestored& fact = *update.add_facts()->mutable_store_restored();
    fact.set_store_id(ours.id());
    fact.set_epoch(seen.epoch() + 1);
    fact.set_epoch_id(fresh_id);
    fact.set_reason(OneLine(what));
  }
  return decide::Checked(state, std::move(update));
}

}  // namespace nibble

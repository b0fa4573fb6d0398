#include "server/scheduler/reservations.h"

#include <algorithm>
#include <iterator>

#include "server/scheduler/place.h"

namespace nibble::scheduler {

class Reservations::Usable {
 public:
  Usable(const World& world, int job) : world_(world), job_(job) {
    kinds_.assign(world.cluster().kinds().size(), false);
    for (const EligibleKind& kind : world.kinds(job)) kinds_[kind.kind] = true;
  }

  bool Kind(int node) const { return kinds_[world_.cluster().nodes()[node].kind]; }
  bool Node(int node) const { return Kind(node) && !world_.Excludes(job_, node); }
  int64_t Of(const NodePlacement& release) const {
    int64_t usable = 0;
    for (const NodeSlots& on : release) usable += Node(on.node) ? on.count : 0;
    return usable;
  }
  // Whether somebody with the same labels, who excludes nothing, could claim of it.
  bool ForAny(const NodePlacement& release) const {
    return std::any_of(release.begin(), release.end(),
                       [this](const NodeSlots& on) { return on.count > 0 && Kind(on.node); });
  }

 private:
  const World& world_;
  const int job_;
  std::vector<bool> kinds_;
};

Reservations::Reservations(World& world)
    : world_(world), first_release_(world.label_sets(), Key{0, -1}) {
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    if (IsActive(world.jobs()[j].phase)) Expect(static_cast<int>(j));
  }
}

void Reservations::Expect(int job) {
  const JobState& state = world_.job(job);
  if (state.end_ms <= world_.now_ms()) return;
  const Key key{state.end_ms, job};
  NodePlacement& release = releases_[key];
  for (const NodeSlots& on : state.active) {
    if (world_.cluster().nodes()[on.node].capacity > 0) release.push_back(on);
  }
  for (Key& first : first_release_) first = std::min(first, key);
}

int64_t Reservations::ClaimSoon(int job, const Usable& usable, int64_t most) {
  int64_t claimed = 0;
  for (int node : world_.soon_nodes()) {
    if (claimed == most) break;
    if (world_.SoonOpen(node) == 0 || !usable.Node(node)) continue;
    const int64_t count = std::min<int64_t>(world_.SoonOpen(node), most - claimed);
    world_.ClaimSoon(job, node, static_cast<int>(count));
    claimed += count;
  }
  return claimed;
}

void Reservations::ClaimAllOpen(int job, NodePlacement& claimed) {
  const FreeIndex& open = world_.open();
  for (const EligibleKind& kind : world_.kinds(job)) {
    const Cluster::Kind& range = world_.cluster().kinds()[kind.kind];
    for (int f = open.max_free(); f > 0 && open.KindFree(kind.kind) > 0; --f) {
      for (int node = open.Find(range.begin, range.end, f); node >= 0;
           node = open.Find(node + 1, range.end, f)) {
        claimed.push_back({node, f});
        world_.ClaimOpen(job, {{node, f}}, world_.now_ms());
      }
    }
  }
}

Reservation Reservations::Reserve(int job, int count, int64_t not_before_ms) {
  const EligibleKinds& kinds = world_.kinds(job);
  const Usable usable(world_, job);
  Key& first_key = first_release_[world_.job(job).labels];
  const auto first = std::find_if(releases_.lower_bound(first_key), releases_.end(),
                                  [&usable](const auto& r) { return usable.ForAny(r.second); });
  first_key = first == releases_.end() ? Key{kNever, 0} : first->first;

  int64_t free = FreeOn(world_.open(), kinds);
  int64_t soon = 0;
  if (world_.SoonOpenOn(kinds) > 0) {
    for (int node : world_.soon_nodes()) soon += usable.Node(node) ? world_.SoonOpen(node) : 0;
  }
  int64_t known = 0;
  auto end = first;
  for (; end != releases_.end() && free + soon + known < count; ++end) {
    known += usable.Of(end->second);
  }
  const bool timed = free + soon + known >= count;

  int64_t left = timed ? count : kNever;
  left -= ClaimSoon(job, usable, left);
  for (auto after = end; after != first && left > 0; --after) {
    for (NodeSlots& on : std::prev(after)->second) {
      if (!usable.Node(on.node)) continue;
      const int taken = static_cast<int>(std::min<int64_t>(on.count, left));
      on.count -= taken;
      left -= taken;
    }
  }
  Reservation reservation;
  if (!timed) {
    ClaimAllOpen(job, reservation.slots);
    std::sort(reservation.slots.begin(), reservation.slots.end(),
              [](const NodeSlots& a, const NodeSlots& b) { return a.node < b.node; });
    return reservation;
  }
  reservation.due_ms =
      std::max(end == first ? world_.now_ms() : std::prev(end)->first.first, not_before_ms);
  if (left > 0) {
    reservation.slots = Place(world_.open(), kinds, static_cast<int>(left));
    world_.ClaimOpen(job, reservation.slots, reservation.due_ms);
  }
  return reservation;
}

int64_t Reservations::KeepFree(int job, int64_t count) {
  const EligibleKinds& kinds = world_.kinds(job);
  count = std::min(count, FreeOn(world_.open(), kinds));
  if (count <= 0) return 0;
  world_.ClaimOpen(job, Place(world_.open(), kinds, static_cast<int>(count)), world_.now_ms());
  return count;
}

void Reservations::Forget(int job, const NodePlacement& leaves) {
  const auto release = releases_.find({world_.job(job).end_ms, job});
  if (release == releases_.end()) return;
  for (NodeSlots& on : release->second) {
    for (const NodeSlots& gone : leaves) {
      if (gone.node == on.node) on.count = std::max(0, on.count - gone.count);
    }
  }
}

}  // namespace nibble::scheduler

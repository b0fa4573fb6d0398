#include "server/scheduler/reservations.h"

#include <algorithm>
#include <iterator>

#include "server/scheduler/place.h"

namespace nibble::scheduler {
namespace {

bool IsBefore(const NodeSlots& a, const NodeSlots& b) { return a.node < b.node; }

}  // namespace

class Reservations::Usable {
 public:
  Usable(const World& world, int job) : world_(world), job_(job) {
    kinds_.assign(world.cluster().kinds().size(), false);
    for (const EligibleKind& kind : world.kinds(job)) kinds_[kind.kind] = true;
  }

  bool Node(int node) const {
    return kinds_[world_.cluster().nodes()[node].kind] && !world_.Excludes(job_, node);
  }
  int64_t Of(const Release& release) const {
    int64_t usable = 0;
    for (const auto& [kind, slots] : release.by_kind) usable += kinds_[kind] ? slots : 0;
    if (usable == 0) return 0;
    for (int node : world_.job(job_).excluded) {
      if (!kinds_[world_.cluster().nodes()[node].kind]) continue;
      const auto at = std::lower_bound(release.slots.begin(), release.slots.end(),
                                       NodeSlots{node, 0}, IsBefore);
      if (at != release.slots.end() && at->node == node) usable -= at->count;
    }
    return usable;
  }
  int64_t SoonOpen() const {
    int64_t soon = world_.SoonOpenOn(world_.kinds(job_));
    if (soon == 0) return 0;
    for (int node : world_.job(job_).excluded) {
      if (kinds_[world_.cluster().nodes()[node].kind]) soon -= world_.SoonOpen(node);
    }
    return soon;
  }
  // Whether a job with the same labels and without exclusions could claim from it.
  bool ForAny(const Release& release) const {
    return std::any_of(release.by_kind.begin(), release.by_kind.end(),
                       [this](const auto& of) { return of.second > 0 && kinds_[of.first]; });
  }

 private:
  const World& world_;
  const int job_;
  std::vector<bool> kinds_;
};

void Reservations::Release::Set(const World& world, const NodePlacement& active) {
  slots.clear();
  by_kind.clear();
  for (const NodeSlots& on : active) {
    const Cluster::Node& node = world.cluster().nodes()[on.node];
    if (node.capacity == 0) continue;
    slots.push_back(on);
    const auto of = std::find_if(by_kind.begin(), by_kind.end(),
                                 [&node](const auto& entry) { return entry.first == node.kind; });
    if (of == by_kind.end()) {
      by_kind.emplace_back(node.kind, on.count);
    } else {
      of->second += on.count;
    }
  }
}

void Reservations::Release::Take(const World& world, NodeSlots& on, int count) {
  const int kind = world.cluster().nodes()[on.node].kind;
  on.count -= count;
  for (auto& [of, left] : by_kind) left -= of == kind ? count : 0;
}

bool Reservations::Release::empty() const {
  return std::all_of(by_kind.begin(), by_kind.end(), [](const auto& of) { return of.second == 0; });
}

Reservations::Reservations(World& world)
    : world_(world),
      release_of_(world.jobs().size(), -1),
      first_release_(world.label_sets(), Key{0, -1}) {
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    if (IsActive(world.jobs()[j].phase)) Expect(static_cast<int>(j));
  }
}

void Reservations::BeginPass() {
  for (int release : touched_) unclaimed_[release] = all_[release];
  touched_.clear();
  std::erase_if(by_end_, [this](int release) { return all_[release].empty(); });
  unclaimed_by_end_ = by_end_;
  std::fill(first_release_.begin(), first_release_.end(), Key{0, -1});
}

Reservations::Release& Reservations::Touch(int release) {
  touched_.push_back(release);
  return unclaimed_[release];
}

void Reservations::Insert(std::vector<int>& order, int release) {
  const auto before = [this](int a, int b) { return all_[a].key < all_[b].key; };
  order.insert(std::lower_bound(order.begin(), order.end(), release, before), release);
}

void Reservations::Expect(int job) {
  const JobState& state = world_.job(job);
  if (state.end_ms <= world_.now_ms()) return;
  const Key key{state.end_ms, job};
  const int release = static_cast<int>(all_.size());
  release_of_[job] = release;
  all_.push_back({.key = key});
  all_.back().Set(world_, state.active);
  unclaimed_.push_back(all_.back());
  Insert(by_end_, release);
  Insert(unclaimed_by_end_, release);
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
  const auto key_of = [this](int release) -> const Key& { return all_[release].key; };
  std::vector<int>& order = unclaimed_by_end_;
  Key& first_key = first_release_[world_.job(job).labels];
  const auto from =
      std::lower_bound(order.begin(), order.end(), first_key,
                       [&key_of](int release, const Key& key) { return key_of(release) < key; });
  const auto first = std::find_if(from, order.end(),
                                  [&](int release) { return usable.ForAny(unclaimed_[release]); });
  first_key = first == order.end() ? Key{kNever, 0} : key_of(*first);

  int64_t free = FreeOn(world_.open(), kinds);
  const int64_t soon = usable.SoonOpen();
  int64_t known = 0;
  auto end = first;
  for (; end != order.end() && free + soon + known < count; ++end) {
    known += usable.Of(unclaimed_[*end]);
  }
  const bool timed = free + soon + known >= count;
  const int64_t due_ms = end == first ? world_.now_ms() : key_of(*std::prev(end)).first;

  int64_t left = timed ? count : kNever;
  left -= ClaimSoon(job, usable, std::min(left, soon));
  for (auto after = end; after != first && left > 0; --after) {
    const int last = *std::prev(after);
    if (usable.Of(unclaimed_[last]) == 0) continue;
    Release& release = Touch(last);
    for (NodeSlots& on : release.slots) {
      if (!usable.Node(on.node)) continue;
      const int taken = static_cast<int>(std::min<int64_t>(on.count, left));
      release.Take(world_, on, taken);
      left -= taken;
    }
  }
  order.erase(std::remove_if(first, end, [this](int r) { return unclaimed_[r].empty(); }), end);
  Reservation reservation;
  if (!timed) {
    ClaimAllOpen(job, reservation.slots);
    std::sort(reservation.slots.begin(), reservation.slots.end(),
              [](const NodeSlots& a, const NodeSlots& b) { return a.node < b.node; });
    return reservation;
  }
  reservation.due_ms = std::max(due_ms, not_before_ms);
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
  const int number = release_of_[job];
  if (number < 0) return;
  Release& release = Touch(number);
  for (NodeSlots& on : release.slots) {
    for (const NodeSlots& left : leaves) {
      if (left.node == on.node) release.Take(world_, on, std::min(on.count, left.count));
    }
  }
  all_[number].Set(world_, world_.job(job).active);
}

}  // namespace nibble::scheduler

#include "server/scheduler/plan.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/scheduler/pass.h"
#include "server/scheduler/place.h"
#include "server/scheduler/reasons.h"
#include "server/scheduler/reservations.h"
#include "server/scheduler/snapshot.h"
#include "server/scheduler/victims.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {
namespace {

Decision Describe(const World& world, int job) {
  const JobState& state = world.job(job);
  Decision decision{.action = state.action, .job = state.job->name, .reason = state.reason};
  if (state.action != Action::kPreempt) decision.placement = world.cluster().Named(state.active);
  if (state.action != Action::kStart) {
    decision.deadline_ms = world.now_ms() + world.policy().grace_ms;
  } else {
    decision.reason = StartReason(world, job);
  }
  for (int other : state.waits_for) decision.waits_for.push_back(world.name(other));
  std::sort(decision.waits_for.begin(), decision.waits_for.end());
  if (state.helps >= 0) decision.helps = world.name(state.helps);
  return decision;
}

bool OnDrainingWorker(const World& world, const JobState& job) {
  return std::any_of(job.active.begin(), job.active.end(), [&world](const NodeSlots& on) {
    return world.cluster().nodes()[on.node].worker->state == WorkerState::kDraining;
  });
}

// The first waiting job that could get slots; -1: none.
int FirstWaiting(const World& world) {
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    const JobState& state = world.jobs()[j];
    const bool early =
        state.phase == JobPhase::kQueued && state.job->not_before_ms > world.now_ms();
    if (!IsWaiting(state.phase) || early) continue;
    if (NeverReason(world, static_cast<int>(j)).empty()) return static_cast<int>(j);
  }
  return -1;
}

// Empty if there are not enough slots.
NodePlacement FindRoom(World& world, int job, int64_t others_spares) {
  const JobState& state = world.job(job);
  const EligibleKinds& kinds = world.kinds(job);
  const int64_t free = FreeOn(world.open(), kinds);
  ChangedForNow own(world.open());
  for (const NodeSlots& on : state.active) {
    if (world.cluster().nodes()[on.node].capacity == 0) continue;
    own.Set(on.node, world.open().free(on.node) + on.count);
  }
  for (int node : state.excluded) own.Set(node, 0);
  const int64_t spares = std::min(free, others_spares);
  const int64_t room = std::min<int64_t>(state.size, FreeOn(world.open(), kinds) - spares);
  const int size = LargestSizeWithin(*state.job, room);
  return size == 0 ? NodePlacement{} : Place(world.open(), kinds, size);
}

int CountOn(const NodePlacement& placement, int node) {
  for (const NodeSlots& on : placement) {
    if (on.node == node) return on.count;
  }
  return 0;
}

// The slots of `from` that `to` lacks.
NodePlacement Beyond(const NodePlacement& from, const NodePlacement& to) {
  NodePlacement beyond;
  for (const NodeSlots& on : from) {
    const int count = on.count - CountOn(to, on.node);
    if (count > 0) beyond.push_back({on.node, count});
  }
  return beyond;
}

bool Starts(const JobState& job) { return job.changed && job.action == Action::kStart; }

bool MayGrow(const World& world, const JobState& job) {
  if (job.stranded || job.size >= LargestSize(*job.job)) return false;
  for (const NodeSlots& on : job.active) {
    // Growing would tie the job to a cordoned or draining worker again.
    if (world.cluster().nodes()[on.node].capacity == 0) return false;
  }
  return Starts(job) || (job.phase == JobPhase::kRunning && !job.changed && job.job->preemptible);
}

// The first job that waits for quota or slots that the job would grow on; -1: none.
int InTheWay(const World& world, int job) {
  const int queue = world.job(job).queue;
  if (queue < 0) return -1;
  const Ledger& ledger = world.ledger();
  if (ledger.account(queue).waiting >= 0) return ledger.account(queue).waiting;
  if (ledger.cohort(queue) != nullptr && ledger.cohort(queue)->waiting >= 0) {
    return ledger.cohort(queue)->waiting;
  }
  for (const EligibleKind& kind : world.kinds(job)) {
    if (world.WaitingFor(kind.kind) >= 0) return world.WaitingFor(kind.kind);
  }
  return -1;
}

// Prefers its own workers, then the best others.
NodePlacement PlaceMore(World& world, int job, const EligibleKinds& kinds, int count) {
  NodePlacement more;
  ChangedForNow taken(world.open());
  for (const NodeSlots& on : world.job(job).active) {
    const int kind = world.cluster().nodes()[on.node].kind;
    const bool usable = std::any_of(kinds.begin(), kinds.end(),
                                    [kind](const EligibleKind& of) { return of.kind == kind; });
    const int slots = usable ? std::min(count, world.open().free(on.node)) : 0;
    if (slots == 0) continue;
    more.push_back({on.node, slots});
    taken.Set(on.node, world.open().free(on.node) - slots);
    count -= slots;
  }
  if (count > 0) {
    const NodePlacement rest = Place(world.open(), kinds, count);
    more.insert(more.end(), rest.begin(), rest.end());
  }
  return more;
}

class Growth {
 public:
  explicit Growth(World& world) : world_(world) {}

  // Returns why it does not grow; "" if it did.
  std::string Try(int job) {
    JobState& state = world_.job(job);
    const int64_t again_ms = state.job->resized_ms + world_.policy().grow_interval_ms;
    if (!Starts(state) && again_ms > world_.now_ms()) {
      return absl::StrCat("may grow again in ", DurationText(again_ms - world_.now_ms()));
    }
    EligibleKinds kinds = world_.kinds(job);
    std::erase_if(kinds,
                  [this](const EligibleKind& kind) { return world_.WaitingFor(kind.kind) >= 0; });
    const int64_t quota = world_.ledger().RoomToGrow(state.queue);
    {
      ChangedForNow withheld(world_.open());
      for (int node : state.excluded) withheld.Set(node, 0);
      const int64_t room = std::min(quota, FreeOn(world_.open(), kinds));
      const int size = LargestSizeWithin(*state.job, state.size + room);
      if (size > state.size) more_ = PlaceMore(world_, job, kinds, size - state.size);
    }
    if (more_.empty()) {
      const int other = InTheWay(world_, job);
      if (other >= 0) return absl::StrCat("others come first: ", JobText(world_, other), " waits");
      return quota == 0 ? "its queue has no quota left" : "not enough free slots for its next size";
    }
    const int before = state.size;
    world_.Promise(job, std::exchange(more_, {}));
    if (Starts(state)) return "";
    state.changed = true;
    state.action = Action::kResize;
    state.phase = JobPhase::kResizing;
    state.reason = absl::StrCat("grows from ", before, " to ", state.size,
                                " slots: they are free and no job waits for them");
    return "";
  }

 private:
  World& world_;
  NodePlacement more_;
};

// Moves jobs off draining workers through a checkpoint. A job that has no waiting job ahead of it
// moves to other free slots, perhaps with a smaller size, and does not touch the spares of other
// jobs; any other job stops and queues again with its original submission time. Runs before the
// first pass, so that the passes see the freed slots. Returns why jobs stay.
std::vector<Remark> Drain(World& world) {
  std::vector<Remark> remarks;
  int64_t spares = 0;
  for (const JobState& state : world.jobs()) {
    if (IsActive(state.phase)) spares += state.job->spare_slots;
  }
  const int waiting = FirstWaiting(world);
  world.BeginPass();
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    const int job = static_cast<int>(j);
    JobState& state = world.job(job);
    const bool settled = state.phase == JobPhase::kRunning || state.phase == JobPhase::kStarting;
    if (!settled || !OnDrainingWorker(world, state)) continue;
    if (!state.job->preemptible) {
      remarks.push_back({state.job->name, "stays on a draining worker: it is not preemptible"});
      continue;
    }
    NodePlacement next;
    if (!state.stranded && (waiting < 0 || waiting > job)) {
      next = FindRoom(world, job, spares - state.job->spare_slots);
    }
    state.reason = DrainReason(world, job, !next.empty());
    state.changed = true;
    state.action = next.empty() ? Action::kPreempt : Action::kResize;
    state.phase = next.empty() ? JobPhase::kStopping : JobPhase::kResizing;
    const NodePlacement before = state.active;
    world.Leave(job, Beyond(before, next));
    world.Promise(job, Beyond(next, before));
  }
  return remarks;
}

// Gives elastic jobs the slots that no job waits for: jobs that this plan starts begin larger;
// running jobs grow through a checkpoint if their last change is long enough ago. Runs after the
// last pass, whose claims `world` still has. Returns why jobs that could be larger are not.
std::vector<Remark> Grow(World& world) {
  std::vector<Remark> remarks;
  Growth growth(world);
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    const int job = static_cast<int>(j);
    if (!IsActive(world.job(job).phase) || !MayGrow(world, world.job(job))) continue;
    const std::string why_not = growth.Try(job);
    if (why_not.empty() || Starts(world.job(job))) continue;
    remarks.push_back(
        {world.name(job), absl::StrCat("stays at ", world.job(job).size, " of up to ",
                                       LargestSize(*world.job(job).job), " slots: ", why_not)});
  }
  return remarks;
}

}  // namespace

absl::StatusOr<Decisions> Plan(const Snapshot& snapshot, int64_t now_ms, const Policy& policy) {
  NIBBLE_RETURN_IF_ERROR(CheckSnapshot(snapshot));

  World world(snapshot, now_ms, policy);
  std::vector<Remark> stay = Drain(world);
  const Victims victims(world);
  Reservations reservations(world);
  std::optional<Pass> pass;
  do {
    pass.emplace(world, victims, reservations);
  } while (pass->Run());

  Decisions decisions;
  decisions.waiting = pass->TakeWaiting();
  decisions.remarks = std::move(stay);
  std::vector<Remark> spares = pass->TakeRemarks();
  std::move(spares.begin(), spares.end(), std::back_inserter(decisions.remarks));
  std::vector<Remark> small = Grow(world);
  std::move(small.begin(), small.end(), std::back_inserter(decisions.remarks));
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    if (world.jobs()[j].changed) decisions.actions.push_back(Describe(world, static_cast<int>(j)));
  }
  std::stable_sort(decisions.actions.begin(), decisions.actions.end(),
                   [](const Decision& a, const Decision& b) { return a.action < b.action; });
  return decisions;
}

}  // namespace nibble::scheduler

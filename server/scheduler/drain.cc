#include "server/scheduler/drain.h"

#include <algorithm>
#include <cstdint>

#include "server/scheduler/place.h"
#include "server/scheduler/sizes.h"
#include "server/scheduler/words.h"

namespace nibble::scheduler {
namespace {

bool OnDrainingWorker(const World& world, const JobState& job) {
  return std::any_of(job.active.begin(), job.active.end(), [&world](const NodeSlots& on) {
    return world.cluster().nodes()[on.node].worker->state == WorkerState::kDraining;
  });
}

// The first job that could be given slots; all are ahead of it in the line. -1: nobody waits.
int FirstWaiting(const World& world) {
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    const JobState& state = world.jobs()[j];
    const bool early =
        state.phase == JobPhase::kQueued && state.job->not_before_ms > world.now_ms();
    if (!IsWaiting(state.phase) || early) continue;
    if (NeverWords(world, static_cast<int>(j)).empty()) return static_cast<int>(j);
  }
  return -1;
}

// None where it has no room.
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

// What `from` has beyond `to`.
NodePlacement Beyond(const NodePlacement& from, const NodePlacement& to) {
  NodePlacement beyond;
  for (const NodeSlots& on : from) {
    const int count = on.count - CountOn(to, on.node);
    if (count > 0) beyond.push_back({on.node, count});
  }
  return beyond;
}

}  // namespace

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
    state.reason = DrainWords(world, job, !next.empty());
    state.changed = true;
    state.action = next.empty() ? Action::kPreempt : Action::kResize;
    state.phase = next.empty() ? JobPhase::kStopping : JobPhase::kResizing;
    const NodePlacement before = state.active;
    world.Leave(job, Beyond(before, next));
    world.Promise(job, Beyond(next, before));
  }
  return remarks;
}

}  // namespace nibble::scheduler

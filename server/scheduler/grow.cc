#include "server/scheduler/grow.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/place.h"
#include "server/scheduler/sizes.h"
#include "server/scheduler/words.h"

namespace nibble::scheduler {
namespace {

bool Starts(const JobState& job) { return job.changed && job.action == Action::kStart; }

bool MayGrow(const World& world, const JobState& job) {
  if (job.stranded || job.size >= LargestSize(*job.job)) return false;
  for (const NodeSlots& on : job.active) {
    // A job on a cordoned or draining worker is not tied to it anew.
    if (world.cluster().nodes()[on.node].capacity == 0) return false;
  }
  return Starts(job) || (job.phase == JobPhase::kRunning && !job.changed && job.job->preemptible);
}

// The first who waits for something that the job would grow on; -1: nobody.
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

// First on workers that it has, then wherever is best.
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

  // "" where it grew.
  std::string Try(int job) {
    JobState& state = world_.job(job);
    const int64_t again_ms = state.job->resized_ms + world_.policy().grow_interval_ms;
    if (!Starts(state) && again_ms > world_.now_ms()) {
      return absl::StrCat("may grow again in ", SpanWords(again_ms - world_.now_ms()));
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
      if (other >= 0) return absl::StrCat("others come first: ", JobWords(world_, other), " waits");
      return quota == 0 ? "its queue has no quota left" : "not enough free slots for its next size";
    }
    const int before = state.size;
    world_.Promise(job, std::exchange(more_, {}));
    if (Starts(state)) return "";
    state.changed = true;
    state.action = Action::kResize;
    state.phase = JobPhase::kResizing;
    state.reason = absl::StrCat("grows from ", before, " to ", state.size,
                                " slots: they are free and nobody waits for them");
    return "";
  }

 private:
  World& world_;
  NodePlacement more_;
};

}  // namespace

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

}  // namespace nibble::scheduler

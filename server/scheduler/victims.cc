#include "server/scheduler/victims.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {
namespace {

int64_t WorkSinceCheckpoint(const JobState& job, int64_t now_ms) {
  return std::max<int64_t>(0, now_ms - job.job->checkpoint_ms) * job.size;
}

}  // namespace

class Victims::Search {
 public:
  Search(const World& world, const Standing& standing, int job, const Needs& needs, bool owns)
      : world_(world),
        for_(job),
        state_(world.job(job)),
        needs_(needs),
        owns_(owns),
        standing_(standing),
        usable_(world.cluster().kinds().size(), false) {
    for (const EligibleKind& kind : world.kinds(job)) {
      usable_[kind.kind] = world.WaitingFor(kind.kind) < 0;
    }
  }

  std::vector<Victim> Run(const std::vector<int>& cheapest_first) {
    if (!CouldFit(cheapest_first)) return {};
    for (int v : cheapest_first) {
      if (Met()) break;
      if (May(v, /*whole=*/false)) Shrink(v);
    }
    for (int v : cheapest_first) {
      if (Met()) break;
      if (May(v, /*whole=*/true)) Preempt(v);
    }
    if (!Met()) return {};
    // Drops victims that are not needed after all: the most expensive first, a preemption before a
    // shrink.
    for (const bool whole : {true, false}) {
      for (size_t c = chosen_.size(); c-- > 0;) {
        if ((chosen_[c].victim.keeps == 0) != whole) continue;
        const Choice kept = std::move(chosen_[c]);
        chosen_.erase(chosen_.begin() + c);
        Add(kept, -1);
        if (Met()) continue;
        Add(kept, 1);
        chosen_.insert(chosen_.begin() + c, kept);
      }
    }
    std::vector<Victim> victims;
    for (Choice& choice : chosen_) victims.push_back(std::move(choice.victim));
    std::sort(victims.begin(), victims.end(),
              [](const Victim& a, const Victim& b) { return a.job < b.job; });
    return victims;
  }

 private:
  struct Choice {
    Victim victim;
    Needs helps;
  };

  bool Met() const {
    return got_.slots >= needs_.slots && got_.queue >= needs_.queue && got_.cohort >= needs_.cohort;
  }

  void Add(const Choice& choice, int sign) {
    got_.slots += sign * choice.helps.slots;
    got_.queue += sign * choice.helps.queue;
    got_.cohort += sign * choice.helps.cohort;
  }

  bool SameCohort(const JobState& v) const {
    return state_.queue >= 0 && v.queue >= 0 && world_.ledger().cohort(v.queue) != nullptr &&
           world_.ledger().cohort(v.queue) == world_.ledger().cohort(state_.queue);
  }

  // The rules of the header. `whole`: preempt; otherwise shrink.
  bool May(int v, bool whole) const {
    const JobState& victim = world_.job(v);
    if (victim.phase != JobPhase::kRunning || victim.changed) return false;
    if (!victim.job->preemptible) return false;
    if (!whole && (victim.stranded || victim.size <= SmallestSize(*victim.job))) return false;
    const int priority = victim.job->priority;
    const bool lower = whole ? priority < state_.job->priority : priority <= state_.job->priority;
    if (owns_ && victim.queue == state_.queue) return lower;
    if (standing_.owns[v]) {
      // Above its smallest size, an owner gives slots to any higher priority.
      return !whole && (victim.queue == state_.queue ? lower : priority < state_.job->priority);
    }
    return lower || (owns_ && SameCohort(victim));
  }

  bool Helps(int node) const {
    const Cluster::Node& at = world_.cluster().nodes()[node];
    return at.capacity > 0 && usable_[at.kind] && !world_.Excludes(for_, node);
  }

  int64_t HelpfulSlots(const JobState& victim) const {
    int64_t slots = 0;
    for (const NodeSlots& on : victim.active) slots += Helps(on.node) ? on.count : 0;
    return slots;
  }

  // The contribution of the victim if it gives up `slots`, `useful` of them on workers that help.
  Needs HelpOf(const JobState& victim, int64_t slots, int64_t useful) const {
    return {.slots = useful,
            .queue = victim.queue == state_.queue ? slots : 0,
            .cohort = SameCohort(victim) ? slots : 0};
  }

  // Whether all victims together suffice.
  bool CouldFit(const std::vector<int>& candidates) const {
    Needs most;
    for (int v : candidates) {
      const bool whole = May(v, true);
      if (!whole && !May(v, false)) continue;
      const JobState& victim = world_.job(v);
      const int64_t slots = whole ? victim.size : victim.size - SmallestSize(*victim.job);
      const Needs help = HelpOf(victim, slots, std::min(slots, HelpfulSlots(victim)));
      most.slots += help.slots;
      most.queue += help.queue;
      most.cohort += help.cohort;
      if (most.slots >= needs_.slots && most.queue >= needs_.queue &&
          most.cohort >= needs_.cohort) {
        return true;
      }
    }
    return false;
  }

  void Shrink(int v) {
    const JobState& victim = world_.job(v);
    const int64_t useful = HelpfulSlots(victim);
    const bool quota = (victim.queue == state_.queue && got_.queue < needs_.queue) ||
                       (SameCohort(victim) && got_.cohort < needs_.cohort);
    if (useful == 0 && !quota) return;
    int64_t wanted = std::min(useful, needs_.slots - got_.slots);
    if (victim.queue == state_.queue) wanted = std::max(wanted, needs_.queue - got_.queue);
    if (SameCohort(victim)) wanted = std::max(wanted, needs_.cohort - got_.cohort);
    if (wanted <= 0) return;
    int keeps = LargestSizeWithin(*victim.job, victim.size - wanted);
    if (keeps == 0) keeps = SmallestSize(*victim.job);
    Choice choice{.victim = {.job = v, .keeps = keeps}};
    const int64_t slots = victim.size - keeps;
    choice.victim.leaves = Leaving(victim, slots);
    choice.helps = HelpOf(victim, slots, std::min(slots, useful));
    Add(choice, 1);
    chosen_.push_back(std::move(choice));
  }

  // First slots that help, then those of the workers it uses least, which keeps the job together.
  NodePlacement Leaving(const JobState& victim, int64_t slots) const {
    NodePlacement order = victim.active;
    std::sort(order.begin(), order.end(), [this](const NodeSlots& a, const NodeSlots& b) {
      return std::make_tuple(!Helps(a.node), a.count, -a.node) <
             std::make_tuple(!Helps(b.node), b.count, -b.node);
    });
    NodePlacement leaves;
    for (const NodeSlots& on : order) {
      if (slots == 0) break;
      const int taken = static_cast<int>(std::min<int64_t>(on.count, slots));
      leaves.push_back({on.node, taken});
      slots -= taken;
    }
    std::sort(leaves.begin(), leaves.end(),
              [](const NodeSlots& a, const NodeSlots& b) { return a.node < b.node; });
    return leaves;
  }

  void Preempt(int v) {
    const JobState& victim = world_.job(v);
    Choice choice{.victim = {.job = v, .leaves = victim.active}};
    choice.helps = HelpOf(victim, victim.size, HelpfulSlots(victim));
    const bool helps = (choice.helps.slots > 0 && got_.slots < needs_.slots) ||
                       (choice.helps.queue > 0 && got_.queue < needs_.queue) ||
                       (choice.helps.cohort > 0 && got_.cohort < needs_.cohort);
    if (!helps) return;
    const auto shrunk = std::find_if(chosen_.begin(), chosen_.end(),
                                     [v](const Choice& c) { return c.victim.job == v; });
    if (shrunk != chosen_.end()) {
      Add(*shrunk, -1);
      chosen_.erase(shrunk);
    }
    Add(choice, 1);
    chosen_.push_back(std::move(choice));
  }

  const World& world_;
  const int for_;
  const JobState& state_;
  const Needs needs_;
  const bool owns_;
  const Standing& standing_;
  std::vector<bool> usable_;  // by kind
  std::vector<Choice> chosen_;
  Needs got_;
};

Victims::Victims(const World& world) : world_(world) {
  const std::vector<JobState>& jobs = world.jobs();
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (IsActive(jobs[j].phase)) cheapest_first_.push_back(static_cast<int>(j));
  }
  const auto cost = [&](int j) {
    // Among equals, the last in the line.
    return std::make_tuple(jobs[j].job->priority, WorkSinceCheckpoint(jobs[j], world.now_ms()), -j);
  };
  std::sort(cheapest_first_.begin(), cheapest_first_.end(),
            [&](int a, int b) { return cost(a) < cost(b); });
}

std::vector<Victim> Victims::Find(int job, const Needs& needs, bool owns,
                                  const Standing& standing) const {
  const Ledger& ledger = world_.ledger();
  const int queue = world_.job(job).queue;
  if (needs.queue > 0 && ledger.account(queue).waiting >= 0) return {};
  if (needs.cohort > 0 && ledger.cohort(queue)->waiting >= 0) return {};
  return Search(world_, standing, job, needs, owns).Run(cheapest_first_);
}

}  // namespace nibble::scheduler

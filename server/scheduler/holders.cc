#include "server/scheduler/holders.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "server/scheduler/words.h"

namespace nibble::scheduler {
namespace {

constexpr size_t kMostNamed = 3;

bool MayBeTaken(const JobState& holder) {
  return holder.phase == JobPhase::kRunning && holder.job->preemptible;
}

}  // namespace

Holders::Holders(const World& world, const Standing& standing)
    : world_(world),
      standing_(standing),
      by_kind_(world.cluster().kinds().size()),
      by_queue_(world.ledger().size()) {
  std::map<int, int> slots;  // of one job, by kind
  for (size_t j = 0; j < world.jobs().size(); ++j) {
    const JobState& state = world.jobs()[j];
    if (!IsActive(state.phase)) continue;
    const int job = static_cast<int>(j);
    slots.clear();
    for (const NodeSlots& on : state.active) {
      slots[world.cluster().nodes()[on.node].kind] += on.count;
    }
    for (const auto& [kind, count] : slots) Add({job, count}, by_kind_[kind]);
    if (state.queue >= 0) Add({job, state.size}, by_queue_[state.queue]);
  }
}

void Holders::Add(Held held, Most& most) {
  ++most.all;
  const auto at = std::upper_bound(most.held.begin(), most.held.end(), held,
                                   [](const Held& a, const Held& b) { return a.slots > b.slots; });
  if (at == most.held.end() && most.held.size() == kMostNamed) return;
  most.held.insert(at, held);
  if (most.held.size() > kMostNamed) most.held.pop_back();
}

Holders::Most Holders::HoldersOf(int job, Of of) const {
  const int queue = world_.job(job).queue;
  if (of == Of::kQueue) return by_queue_[queue];
  std::map<int, int> slots;  // by job
  size_t all = 0;            // at least: some hold slots of several kinds, others are not kept
  const auto add = [&](const Most& most) {
    all = std::max(all, most.all);
    for (const Held& held : most.held) slots[held.job] += held.slots;
  };
  if (of == Of::kSlots) {
    for (const EligibleKind& kind : world_.kinds(job)) add(by_kind_[kind.kind]);
  } else {
    const int cohort = world_.ledger().account(queue).cohort;
    for (size_t q = 0; q < by_queue_.size(); ++q) {
      if (world_.ledger().account(static_cast<int>(q)).cohort == cohort) add(by_queue_[q]);
    }
  }
  Most most;
  for (const auto& [holder, count] : slots) Add({holder, count}, most);
  most.all = std::max(all, slots.size());
  return most;
}

std::string Holders::Protection(int holder, int job) const {
  const JobState& state = world_.job(holder);
  if (state.phase == JobPhase::kStarting) return "starting";
  if (state.phase == JobPhase::kResizing) return "changing its size";
  if (!state.job->preemptible) return "not preemptible";
  if (standing_.owns[holder]) {
    const std::string own = absl::StrCat("within the quota of queue ",
                                         world_.ledger().account(state.queue).queue->name);
    return state.queue == world_.job(job).queue
               ? absl::StrCat("priority ", state.job->priority, ", ", own)
               : own;
  }
  return absl::StrCat("priority ", state.job->priority);
}

std::string Holders::Words(int job, Of of) const {
  const JobState& state = world_.job(job);
  std::string words;
  if (of == Of::kSlots) {
    const Ledger::Account& account = world_.ledger().account(state.queue);
    words = world_.ledger().HasQuota(state.queue)
                ? absl::StrCat("; queue ", account.queue->name, " uses ", account.used,
                               " of its quota of ", account.queue->quota)
                : absl::StrCat("; queue ", account.queue->name, " has no quota");
  }
  const Most most = HoldersOf(job, of);
  if (most.held.empty()) return words;
  std::vector<std::string> named;
  int above = std::numeric_limits<int>::max();
  for (const Held& held : most.held) {
    named.push_back(absl::StrCat(world_.name(held.job), " (", Counted(held.slots, "slot"), ", ",
                                 Protection(held.job, job), ")"));
    const JobState& holder = world_.job(held.job);
    const bool owner_elsewhere = standing_.owns[held.job] && holder.queue != state.queue;
    if (!MayBeTaken(holder) || owner_elsewhere || holder.job->priority < state.job->priority) {
      continue;
    }
    above = std::min(above, holder.job->priority);
  }
  absl::StrAppend(&words, "; held by ", absl::StrJoin(named, ", "),
                  most.all > named.size() ? " and others" : "", "; free when ",
                  most.all == 1 ? "it ends" : "they end");
  if (above != std::numeric_limits<int>::max()) {
    absl::StrAppend(&words, ", or for a priority above ", above);
  }
  return words;
}

const std::string& Holders::WordsFor(int job, Of of) {
  const JobState& state = world_.job(job);
  std::string& words = words_[{state.labels, state.queue, state.job->priority, of}];
  if (words.empty()) words = Words(job, of);
  return words;
}

}  // namespace nibble::scheduler

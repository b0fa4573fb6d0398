#include "server/scheduler/reasons.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {
namespace {

// A reason names at most this many workers or jobs.
constexpr size_t kMostNamed = 3;

std::string WithLabels(const std::vector<std::string>& labels) {
  if (labels.empty()) return "";
  return absl::StrCat(" with ", absl::StrJoin(labels, " and "));
}

std::string Named(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > kMostNamed) names.resize(kMostNamed);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      all > kMostNamed ? absl::StrCat(" and ", all - kMostNamed, " more") : "");
}

const std::string& QueueName(const World& world, int job) {
  return world.ledger().account(world.job(job).queue).queue->name;
}

std::string Excluding(const World& world, int job) {
  std::vector<std::string> names;
  for (int node : world.job(job).excluded) {
    for (const EligibleKind& kind : world.kinds(job)) {
      if (world.cluster().nodes()[node].kind == kind.kind)
        names.push_back(world.cluster().name(node));
    }
  }
  if (names.empty()) return "";
  return absl::StrCat("; excluded for it: ", Named(std::move(names)));
}

// Slots that the job could use on an empty cluster; `withheld`: those on workers that take no new
// work.
int64_t CapacityFor(const World& world, int job, bool withheld) {
  int64_t slots = 0;
  for (const EligibleKind& kind : world.kinds(job)) {
    const Cluster::Kind& of = world.cluster().kinds()[kind.kind];
    slots += withheld ? of.withheld : of.capacity;
    for (int node : world.job(job).excluded) {
      const Cluster::Node& at = world.cluster().nodes()[node];
      if (at.kind != kind.kind) continue;
      slots -= withheld ? (at.capacity == 0 ? at.worker->slots : 0) : at.capacity;
    }
  }
  return slots;
}

std::string NoSuchWorker(const World& world, const Job& job) {
  for (const std::string& label : job.required) {
    const Job alone{.required = {label}};
    if (FindEligibleKinds(world.cluster(), alone).empty()) {
      return absl::StrCat("no worker has ", label);
    }
  }
  return job.required.empty()
             ? "there are no workers"
             : absl::StrCat("no worker has all of ", absl::StrJoin(job.required, ", "));
}

bool MayBeTaken(const JobState& holder) {
  return holder.phase == JobPhase::kRunning && holder.job->preemptible;
}

}  // namespace

std::string DurationText(int64_t ms) {
  constexpr int64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute;
  const auto in = [ms](int64_t unit) { return (ms + unit - 1) / unit; };
  if (ms <= 2 * kMinute) return absl::StrCat(in(kSecond), " s");
  if (ms <= 2 * kHour) return absl::StrCat(in(kMinute), " min");
  return absl::StrCat(in(kHour), " h");
}

std::string JobText(const World& world, int job) {
  return absl::StrCat("job ", world.name(job), " (priority ", world.job(job).job->priority, ")");
}

std::string NeedText(const World& world, int job) {
  const Job& needs = *world.job(job).job;
  const bool elastic = SmallestSize(needs) < LargestSize(needs);
  return absl::StrCat("needs ", elastic ? "at least " : "", Counted(SmallestSize(needs), "slot"),
                      WithLabels(needs.required));
}

std::string NeverReason(const World& world, int job) {
  const JobState& state = world.job(job);
  const int64_t size = SmallestSize(*state.job);
  if (state.queue < 0) {
    return absl::StrCat(NeedText(world, job), "; there is no queue \"", state.job->queue, "\"");
  }
  if (world.ledger().HasQuota(state.queue) && size > world.ledger().account(state.queue).limit) {
    const Ledger::Account& account = world.ledger().account(state.queue);
    return absl::StrCat(NeedText(world, job), "; queue ", account.queue->name,
                        " may never hold more than ", account.limit, " (quota ",
                        account.queue->quota, ", borrowing up to ",
                        account.limit - account.queue->quota, ")");
  }
  if (world.kinds(job).empty()) {
    return absl::StrCat(NeedText(world, job), "; ", NoSuchWorker(world, *state.job));
  }
  const int64_t capacity = CapacityFor(world, job, false);
  if (capacity >= size) return "";
  const int64_t withheld = CapacityFor(world, job, true);
  return absl::StrCat(NeedText(world, job), "; the cluster has ", capacity, " that it can use",
                      withheld > 0 ? absl::StrCat(" and ", withheld,
                                                  " on workers that are cordoned, draining or lost")
                                   : "",
                      Excluding(world, job));
}

std::string SlotsReason(const World& world, int job, int behind, int64_t due_ms) {
  int64_t free = 0, workers = 0;
  for (const EligibleKind& kind : world.kinds(job)) {
    free += world.idle().KindFree(kind.kind);
    workers += world.idle().KindNodes(kind.kind);
  }
  std::string text = absl::StrCat(
      NeedText(world, job), "; ",
      free == 0 ? "none free" : absl::StrCat(free, " free on ", Counted(workers, "worker")),
      Excluding(world, job));
  if (behind >= 0) {
    const bool spares = IsActive(world.job(behind).phase);
    absl::StrAppend(&text, spares ? "; some are spare slots of " : "; waiting behind ",
                    JobText(world, behind));
  }
  const int64_t not_before_ms = world.job(job).job->not_before_ms;
  if (not_before_ms > world.now_ms()) {
    absl::StrAppend(&text, "; backs off for ", DurationText(not_before_ms - world.now_ms()),
                    " more");
  }
  if (due_ms > world.now_ms()) {
    absl::StrAppend(&text, "; expected in ", DurationText(due_ms - world.now_ms()));
  }
  return text;
}

std::string QuotaReason(const World& world, int job, bool over_queue, int behind) {
  const JobState& state = world.job(job);
  const Ledger::Account& account = world.ledger().account(state.queue);
  std::string text = absl::StrCat(NeedText(world, job), "; queue ", QueueName(world, job), " uses ",
                                  account.used, " of its quota of ", account.queue->quota);
  const Ledger::Cohort* cohort = world.ledger().cohort(state.queue);
  if (cohort == nullptr) {
    absl::StrAppend(&text, " and may not borrow");
  } else if (over_queue) {
    absl::StrAppend(&text, " and may borrow ", account.limit - account.queue->quota);
  } else {
    absl::StrAppend(&text, "; cohort ", cohort->name, " uses ", cohort->used, " of ",
                    cohort->total);
  }
  if (behind >= 0) absl::StrAppend(&text, "; waiting behind ", JobText(world, behind));
  return text;
}

std::string BackoffReason(const World& world, int job) {
  return absl::StrCat(NeedText(world, job), "; backs off after a failure for ",
                      DurationText(world.job(job).job->not_before_ms - world.now_ms()), " more");
}

std::string StartReason(const World& world, int job) {
  const JobState& state = world.job(job);
  std::vector<std::string> workers, leaving;
  for (const NodeSlots& on : state.active) workers.push_back(world.cluster().name(on.node));
  for (int other : state.waits_for) leaving.push_back(world.name(other));
  const bool more = LargestSize(*state.job) > state.size;
  const std::string count = Counted(workers.size(), "worker");
  return absl::StrCat(
      "starts with ", Counted(state.size, "slot"),
      more ? absl::StrCat(" of up to ", LargestSize(*state.job)) : "",
      WithLabels(state.job->required), " on ", count, ": ", Named(std::move(workers)),
      leaving.empty() ? "" : absl::StrCat("; once left by ", Named(std::move(leaving))));
}

std::string VictimReason(const World& world, int job, int helps, bool shrinks) {
  const JobState& state = world.job(job);
  return absl::StrCat(shrinks ? absl::StrCat("shrinks to ", Counted(state.size, "slot"), " for ")
                              : "is preempted for ",
                      JobText(world, helps), ", which ", NeedText(world, helps),
                      shrinks ? "" : "; keeps its place in the queue");
}

std::string DrainReason(const World& world, int job, bool moves) {
  std::vector<std::string> draining;
  for (const NodeSlots& on : world.job(job).active) {
    if (world.cluster().nodes()[on.node].worker->state == WorkerState::kDraining) {
      draining.push_back(world.cluster().name(on.node));
    }
  }
  return absl::StrCat(moves ? "moves" : "stops and keeps its place in the queue",
                      " because of draining ", Named(std::move(draining)),
                      moves ? "" : "; no other workers have room for it");
}

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
  size_t all = 0;            // a lower bound: some hold slots of several kinds, others are not kept
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

std::string Holders::Text(int job, Of of) const {
  const JobState& state = world_.job(job);
  std::string text;
  if (of == Of::kSlots) {
    const Ledger::Account& account = world_.ledger().account(state.queue);
    text = world_.ledger().HasQuota(state.queue)
               ? absl::StrCat("; queue ", account.queue->name, " uses ", account.used,
                              " of its quota of ", account.queue->quota)
               : absl::StrCat("; queue ", account.queue->name, " has no quota");
  }
  const Most most = HoldersOf(job, of);
  if (most.held.empty()) return text;
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
  absl::StrAppend(&text, "; held by ", absl::StrJoin(named, ", "),
                  most.all > named.size() ? " and others" : "", "; free when ",
                  most.all == 1 ? "it ends" : "they end");
  if (above != std::numeric_limits<int>::max()) {
    absl::StrAppend(&text, ", or for a priority above ", above);
  }
  return text;
}

const std::string& Holders::TextFor(int job, Of of) {
  const JobState& state = world_.job(job);
  std::string& text = texts_[{state.labels, state.queue, state.job->priority, of}];
  if (text.empty()) text = Text(job, of);
  return text;
}

}  // namespace nibble::scheduler

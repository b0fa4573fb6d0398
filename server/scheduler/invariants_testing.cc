#include "server/scheduler/invariants_testing.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {
namespace {

template <class Entity>
const Entity* Find(const std::vector<Entity>& entities, std::string_view name) {
  for (const Entity& entity : entities) {
    if (entity.name == name) return &entity;
  }
  return nullptr;
}

constexpr const char* kActions[] = {"preempt", "resize", "start"};
constexpr const char* kWaits[] = {"slots", "quota", "back-off", "never"};

const Placement& PromisedSlots(const Job& job) {
  static const Placement* const kNone = new Placement;
  if (job.phase == JobPhase::kResizing) return job.next;
  return IsWaiting(job.phase) || job.phase == JobPhase::kStopping ? *kNone : job.held;
}

int On(const Placement& placement, const std::string& worker) {
  for (const SlotsOn& on : placement) {
    if (on.worker == worker) return on.slots;
  }
  return 0;
}

int SparesOf(const Job& job) { return IsActive(job.phase) ? job.spare_slots : 0; }

class Checker {
 public:
  Checker(const Snapshot& before, const Decisions& plan, int64_t now_ms)
      : before_(before), plan_(plan), now_ms_(now_ms), after_(Apply(before, plan, now_ms)) {}

  std::vector<std::string> Run() {
    EachWaitingJobIsAnsweredOnce();
    for (const Decision& decision : plan_.actions) Action(decision);
    for (const Worker& worker : before_.workers) NoOvercommit(worker);
    for (const Queue& queue : before_.queues) NoQuotaExceeded(queue);
    for (const Waiting& waiting : plan_.waiting) Wait(waiting);
    VictimsAreMinimal();
    return std::move(broken_);
  }

 private:
  template <class... Words>
  void Broken(const Words&... words) {
    broken_.push_back(absl::StrCat(words...));
  }

  void EachWaitingJobIsAnsweredOnce() {
    std::map<std::string, int> answers;
    for (const Decision& decision : plan_.actions) ++answers[decision.job];
    for (const Waiting& waiting : plan_.waiting) ++answers[waiting.job];
    for (const auto& [job, count] : answers) {
      if (count > 1) Broken("job ", job, " has ", count, " answers");
    }
    for (const Job& job : before_.jobs) {
      if (IsWaiting(job.phase) && answers[job.name] != 1)
        Broken("job ", job.name, " waits without an answer");
    }
  }

  void Action(const Decision& decision) {
    const Job& job = FindJob(before_, decision.job);
    if (decision.reason.empty()) Broken(decision.job, " changes without a reason");
    if (decision.action == scheduler::Action::kPreempt) return Preempt(decision, job);
    const int size = SlotsOf(decision.placement);
    if (LargestSizeWithin(job, size) != size) {
      Broken("job ", job.name, " gets ", size, " slots, which it does not allow");
    }
    for (const SlotsOn& on : decision.placement) {
      const Worker* worker = FindWorker(before_, on.worker);
      if (worker == nullptr) {
        Broken("job ", job.name, " is placed on absent ", on.worker);
        continue;
      }
      if (on.slots <= On(job.held, on.worker)) continue;  // keeps its slots
      if (!CanUse(job, *worker)) Broken("job ", job.name, " cannot use ", on.worker);
      if (worker->state != WorkerState::kReady) Broken(job.name, " on unready ", on.worker);
    }
    if (decision.action == scheduler::Action::kStart) return Start(decision, job);
    if (job.phase != JobPhase::kRunning && job.phase != JobPhase::kStarting) {
      Broken("job ", job.name, " is resized while it does not run");
    }
    if (!job.preemptible) Broken("job ", job.name, " is resized although not preemptible");
    if (!decision.helps.empty()) {
      if (size >= PromisedTo(job)) Broken("job ", job.name, " is a victim and does not shrink");
      MayTake(decision, job, /*or_equal=*/true);
    }
  }

  void Start(const Decision& decision, const Job& job) {
    if (!IsWaiting(job.phase)) Broken("job ", job.name, " starts although it did not wait");
    if (job.not_before_ms > now_ms_) Broken("job ", job.name, " starts before its time");
    for (const std::string& other : decision.waits_for) FindJob(before_, other);
    if (!decision.waits_for.empty()) return;
    for (const SlotsOn& on : decision.placement) {
      const WorkerUse use = UseOf(before_, on.worker);
      int started = 0;
      for (const Decision& other : plan_.actions) {
        if (other.action == scheduler::Action::kStart && other.waits_for.empty()) {
          started += On(other.placement, on.worker);
        }
      }
      if (use.promised + use.leaving + started > FindWorker(before_, on.worker)->slots) {
        Broken("job ", job.name, " starts on slots of ", on.worker,
               " that others have not left yet");
      }
    }
  }

  void Preempt(const Decision& decision, const Job& job) {
    if (!job.preemptible) Broken("job ", job.name, " is preempted although not preemptible");
    if (job.phase != JobPhase::kRunning && job.phase != JobPhase::kStarting) {
      Broken("job ", job.name, " is preempted while it does not run");
    }
    if (decision.deadline_ms <= now_ms_) Broken("job ", job.name, " has no grace period");
    if (!decision.helps.empty()) return MayTake(decision, job, /*or_equal=*/false);
    const bool drains = std::any_of(job.held.begin(), job.held.end(), [this](const SlotsOn& on) {
      const Worker* worker = FindWorker(before_, on.worker);
      return worker != nullptr && worker->state == WorkerState::kDraining;
    });
    if (!drains) Broken("job ", job.name, " is preempted for no job");
  }

  // Strictly lower priority (or equal, for a shrink), or a borrower for an owner in the cohort.
  void MayTake(const Decision& decision, const Job& victim, bool or_equal) {
    const Job& helped = FindJob(before_, decision.helps);
    if (!absl::StrContains(decision.reason, helped.name)) {
      Broken("the reason of ", victim.name, " does not name ", helped.name);
    }
    const bool starts =
        std::any_of(plan_.actions.begin(), plan_.actions.end(), [&helped](const Decision& other) {
          return other.job == helped.name && other.action == scheduler::Action::kStart;
        });
    if (!starts)
      Broken("job ", victim.name, " is preempted for ", helped.name, ", which still waits");
    if (victim.priority < helped.priority) return;
    if (or_equal && victim.priority == helped.priority) return;
    const Queue* from = FindQueue(before_, victim.queue);
    const Queue* to = FindQueue(before_, helped.queue);
    const bool owner = from != nullptr && to != nullptr && from != to && !to->cohort.empty() &&
                       from->cohort == to->cohort && UsedAtMost(from->name) > from->quota;
    if (!owner) Broken("job ", victim.name, " is preempted for ", helped.name, " without a right");
  }

  // The queue's usage if the plan's starts came before any job leaves.
  int64_t UsedAtMost(const std::string& queue) const {
    int64_t used = QuotaOf(before_, queue).used;
    for (const Decision& decision : plan_.actions) {
      const bool starts = decision.action == scheduler::Action::kStart;
      if (starts && FindJob(before_, decision.job).queue == queue) {
        used += SlotsOf(decision.placement);
      }
    }
    return used;
  }

  void NoOvercommit(const Worker& worker) {
    const int was = UseOf(before_, worker.name).promised;
    const int is = UseOf(after_, worker.name).promised;
    const int most = worker.state == WorkerState::kReady ? worker.slots : 0;
    if (is > std::max(most, was)) Broken("worker ", worker.name, " promises ", is, " of ", most);
    int reserved = 0;
    for (const Waiting& waiting : plan_.waiting) reserved += On(waiting.reserved, worker.name);
    const WorkerUse after = UseOf(after_, worker.name);
    if (reserved > 0 && after.promised + reserved > most) {
      Broken("worker ", worker.name, " has reserved slots that were taken");
    }
  }

  void NoQuotaExceeded(const Queue& queue) {
    if (queue.quota == kUnlimited) return;
    const QuotaUse was = QuotaOf(before_, queue.name);
    const QuotaUse is = QuotaOf(after_, queue.name);
    if (is.used > std::max(is.limit, was.used)) {
      Broken("queue ", queue.name, " uses ", is.used, " of ", is.limit);
    }
    if (is.cohort_total == kUnlimited) return;
    if (is.cohort_used > std::max(is.cohort_total, was.cohort_used)) {
      Broken("cohort of ", queue.name, " uses ", is.cohort_used, " of ", is.cohort_total);
    }
  }

  int64_t Capacity(const Job& job) const {
    int64_t slots = 0;
    for (const Worker& worker : before_.workers) {
      if (worker.state == WorkerState::kReady && CanUse(job, worker)) slots += worker.slots;
    }
    return slots;
  }

  // Slots that the plan promises to no job; `soon`: including those that jobs have not left yet.
  int64_t Free(const Job& job, bool soon) const {
    int64_t slots = 0;
    for (const Worker& worker : before_.workers) {
      if (worker.state != WorkerState::kReady || !CanUse(job, worker)) continue;
      const WorkerUse use = UseOf(after_, worker.name);
      slots += std::max(0, worker.slots - use.promised - (soon ? 0 : use.leaving));
    }
    return slots;
  }

  void Wait(const Waiting& waiting) {
    const Job& job = FindJob(before_, waiting.job);
    if (waiting.reason.empty()) Broken("job ", job.name, " waits without a reason");
    if (!absl::StrContains(waiting.reason, absl::StrCat(SmallestSize(job), " slot"))) {
      Broken("the reason of ", job.name, " does not contain the slots it needs");
    }
    if (!waiting.behind.empty()) {
      FindJob(before_, waiting.behind);
      if (!absl::StrContains(waiting.reason, waiting.behind)) {
        Broken("the reason of ", job.name, " does not name ", waiting.behind);
      }
    }
    const Queue* queue = FindQueue(before_, job.queue);
    const int64_t limit = queue == nullptr ? 0 : QuotaOf(before_, job.queue).limit;
    const bool never = queue == nullptr || Capacity(job) < SmallestSize(job) ||
                       (limit != kUnlimited && limit < SmallestSize(job));
    if (never != (waiting.kind == WaitKind::kNever)) {
      Broken("job ", job.name, never ? " can never start" : " could start later");
    }
    if (waiting.kind == WaitKind::kBackOff && job.not_before_ms <= now_ms_) {
      Broken("job ", job.name, " backs off without a time");
    }
    if (never || !waiting.behind.empty() || job.not_before_ms > now_ms_) return;
    NothingAheadAndStillWaits(waiting, job);
  }

  void NothingAheadAndStillWaits(const Waiting& waiting, const Job& job) {
    // Spares and recovering jobs may keep free slots for a time.
    int64_t held = 0;
    for (const Job& other : after_.jobs) held += SparesOf(other);
    for (const Waiting& other : plan_.waiting) {
      if (other.job != job.name) held += SlotsOf(other.reserved);
    }
    const bool fits = Free(job, true) - held >= SmallestSize(job);
    const bool alone =
        plan_.waiting.size() == 1 && Allows(QuotaOf(after_, job.queue), SmallestSize(job));
    if (fits && (alone || waiting.kind == WaitKind::kSlots)) {
      Broken("job ", job.name, " waits although it fits and no job is ahead");
    }
  }

  void VictimsAreMinimal() {
    std::set<std::string> helped;
    for (const Decision& decision : plan_.actions) {
      if (decision.action != scheduler::Action::kStart) helped.insert(decision.helps);
    }
    if (helped.size() != 1 || helped.begin()->empty()) return;
    const Job& job = FindJob(before_, *helped.begin());
    int64_t free = Free(job, true);
    for (const Decision& decision : plan_.actions) {
      if (decision.job == job.name) free += SlotsOf(decision.placement);
    }
    for (const Job& other : after_.jobs) free -= SparesOf(other);
    for (const Waiting& waiting : plan_.waiting) free -= SlotsOf(waiting.reserved);
    for (const Decision& decision : plan_.actions) {
      if (decision.helps != job.name) continue;
      // The snapshot if this victim had not been chosen.
      const Job& victim = FindJob(before_, decision.job);
      int64_t stays = victim.spare_slots;
      for (const SlotsOn& on : PromisedSlots(victim)) {
        const Worker* worker = FindWorker(before_, on.worker);
        if (worker == nullptr || worker->state != WorkerState::kReady) continue;
        if (CanUse(job, *worker)) stays += on.slots - On(decision.placement, on.worker);
      }
      Snapshot kept = after_;
      FindJob(kept, victim.name) = victim;
      const int64_t start = PromisedTo(FindJob(after_, job.name)) - SmallestSize(job);
      if (free - stays >= SmallestSize(job) && Allows(QuotaOf(kept, job.queue), -start) &&
          plan_.waiting.empty()) {
        Broken("job ", victim.name, " is preempted for ", job.name, ", which fits without that");
      }
    }
  }

  const Snapshot& before_;
  const Decisions& plan_;
  const int64_t now_ms_;
  const Snapshot after_;
  std::vector<std::string> broken_;
};

}  // namespace

int SlotsOf(const Placement& placement) {
  int slots = 0;
  for (const SlotsOn& on : placement) slots += on.slots;
  return slots;
}

const Job& FindJob(const Snapshot& snapshot, std::string_view name) {
  const Job* job = Find(snapshot.jobs, name);
  if (job == nullptr) {
    std::fprintf(stderr, "no job %s\n", std::string(name).c_str());
    std::abort();
  }
  return *job;
}

Job& FindJob(Snapshot& snapshot, std::string_view name) {
  return const_cast<Job&>(FindJob(static_cast<const Snapshot&>(snapshot), name));
}

const Worker* FindWorker(const Snapshot& snapshot, std::string_view name) {
  return Find(snapshot.workers, name);
}

const Queue* FindQueue(const Snapshot& snapshot, std::string_view name) {
  return Find(snapshot.queues, name);
}

Snapshot Apply(Snapshot snapshot, const Decisions& decisions, int64_t now_ms) {
  for (const Decision& decision : decisions.actions) {
    Job& job = FindJob(snapshot, decision.job);
    switch (decision.action) {
      case Action::kStart:
        job.phase = JobPhase::kStarting;
        job.held = decision.placement;
        job.checkpoint_ms = job.resized_ms = now_ms;
        job.expected_end_ms = job.expected_ms > 0 ? now_ms + job.expected_ms : 0;
        break;
      case Action::kResize:
        job.phase = JobPhase::kResizing;
        job.next = decision.placement;
        job.resized_ms = now_ms;
        break;
      case Action::kPreempt:
        job.phase = JobPhase::kStopping;
        job.next.clear();
        break;
    }
  }
  return snapshot;
}

std::string ToText(const Placement& placement) {
  std::vector<std::string> parts;
  for (const SlotsOn& on : placement) parts.push_back(absl::StrCat(on.worker, ":", on.slots));
  return absl::StrJoin(parts, "+");
}

std::string ToText(const Decision& decision) {
  std::string text = absl::StrCat(kActions[static_cast<int>(decision.action)], " ", decision.job);
  if (!decision.placement.empty()) absl::StrAppend(&text, " on ", ToText(decision.placement));
  for (const std::string& other : decision.waits_for) absl::StrAppend(&text, " after ", other);
  if (!decision.helps.empty()) absl::StrAppend(&text, " for ", decision.helps);
  return text;
}

std::string ToText(const Decisions& decisions) {
  std::string text;
  for (const Decision& d : decisions.actions) {
    absl::StrAppend(&text, ToText(d), " by ", d.deadline_ms, ": ", d.reason, "\n");
  }
  for (const Waiting& w : decisions.waiting) {
    absl::StrAppend(&text, "wait ", w.job, " (", kWaits[static_cast<int>(w.kind)], ") behind '",
                    w.behind, "' due ", w.due_ms, " holding ", ToText(w.reserved), ": ", w.reason,
                    "\n");
  }
  for (const Remark& r : decisions.remarks) absl::StrAppend(&text, r.job, ": ", r.reason, "\n");
  return text;
}

std::vector<std::string> Violations(const Snapshot& before, const Decisions& plan, int64_t now_ms) {
  return Checker(before, plan, now_ms).Run();
}

WorkerUse UseOf(const Snapshot& snapshot, const std::string& worker) {
  WorkerUse use;
  for (const Job& job : snapshot.jobs) {
    const int promised = On(PromisedSlots(job), worker);
    use.promised += promised;
    use.leaving += std::max(0, On(job.held, worker) - promised);
  }
  return use;
}

bool HasLabels(const Worker& worker, const std::vector<std::string>& labels) {
  return absl::c_all_of(labels, [&worker](const std::string& label) {
    return absl::c_linear_search(worker.labels, label);
  });
}

bool CanUse(const Job& job, const Worker& worker) {
  return HasLabels(worker, job.required) &&
         !absl::c_linear_search(job.excluded_workers, worker.name);
}

int64_t PromisedTo(const Job& job) { return SlotsOf(PromisedSlots(job)); }

bool Allows(const QuotaUse& use, int64_t slots) {
  return (use.limit == kUnlimited || use.used + slots <= use.limit) &&
         (use.cohort_total == kUnlimited || use.cohort_used + slots <= use.cohort_total);
}

QuotaUse QuotaOf(const Snapshot& snapshot, const std::string& name) {
  QuotaUse use;
  const Queue* own = FindQueue(snapshot, name);
  if (own == nullptr) return use;
  const bool lends = own->quota != kUnlimited && !own->cohort.empty();
  use.limit = own->quota;
  if (lends) use.cohort_total = 0;
  for (const Queue& queue : snapshot.queues) {
    const bool same = lends && queue.cohort == own->cohort;
    if (same) use.cohort_total += queue.quota;
    for (const Job& job : snapshot.jobs) {
      if (job.queue != queue.name) continue;
      if (queue.name == name) use.used += PromisedTo(job);
      if (same) use.cohort_used += PromisedTo(job);
    }
  }
  if (!lends) return use;
  use.limit = use.cohort_total;
  if (own->borrow_limit != kUnlimited) {
    use.limit = std::min(use.limit, own->quota + own->borrow_limit);
  }
  return use;
}

}  // namespace nibble::scheduler::testing

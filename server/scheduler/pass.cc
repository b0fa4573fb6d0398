#include "server/scheduler/pass.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/place.h"
#include "server/scheduler/reasons.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {
namespace {

// Within this scope, the workers that `job` excludes count as having no free slots.
class Withheld {
 public:
  Withheld(World& world, int job) {
    if (world.job(job).excluded.empty()) return;
    open_.emplace(world.open());
    ample_.emplace(world.ample());
    idle_.emplace(world.idle());
    for (int node : world.job(job).excluded) {
      open_->Set(node, 0);
      ample_->Set(node, 0);
      idle_->Set(node, 0);
    }
  }

 private:
  std::optional<ChangedForNow> open_, ample_, idle_;
};

template <class Entry>
std::vector<Entry> InOrder(std::vector<std::pair<int, Entry>> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entry> ordered;
  ordered.reserve(entries.size());
  for (auto& [job, entry] : entries) ordered.push_back(std::move(entry));
  return ordered;
}

}  // namespace

Pass::Pass(World& world, const Victims& victims, Reservations& reservations)
    : world_(world),
      victims_(victims),
      reservations_(reservations),
      standing_(FindStanding(world)),
      started_(world.ledger().size(), 0),
      least_deferred_(world.ledger().size(), 0),
      started_now_(world.jobs().size(), false),
      for_cohort_(world.jobs().size(), false) {
  world.BeginPass();
  reservations.BeginPass();
}

std::vector<Waiting> Pass::TakeWaiting() {
  Holders holders(world_, standing_);
  for (auto& [job, waiting] : waiting_) {
    if (waiting.kind == WaitKind::kBackOff) waiting.reason = BackoffReason(world_, job);
    if (waiting.kind == WaitKind::kSlots) {
      waiting.reason += holders.TextFor(job, Holders::Of::kSlots);
    } else if (waiting.kind == WaitKind::kQuota) {
      waiting.reason +=
          holders.TextFor(job, for_cohort_[job] ? Holders::Of::kCohort : Holders::Of::kQueue);
    }
  }
  return InOrder(std::move(waiting_));
}

std::vector<Remark> Pass::TakeRemarks() {
  std::vector<std::pair<int, Remark>> remarks;
  for (const auto& [job, kept] : few_spares_) {
    remarks.emplace_back(job,
                         Remark{world_.name(job),
                                absl::StrCat("has ", kept, " of ", world_.job(job).job->spare_slots,
                                             " spare slots: no more are free")});
  }
  return InOrder(std::move(remarks));
}

std::vector<Pass::Turn> Pass::Line() const {
  const std::vector<JobState>& jobs = world_.jobs();
  std::vector<Turn> line;
  for (size_t begin = 0, end = 0; begin < jobs.size(); begin = end) {
    const int priority = jobs[begin].job->priority;
    while (end < jobs.size() && jobs[end].job->priority == priority) ++end;
    for (size_t j = begin; j < end; ++j) {
      const bool recovers = jobs[j].phase == JobPhase::kRecovering;
      if (recovers) line.push_back({static_cast<int>(j), false});
    }
    for (size_t j = begin; j < end; ++j) {
      const bool queued = jobs[j].phase == JobPhase::kQueued;
      if (queued) line.push_back({static_cast<int>(j), false});
      if (jobs[j].job->spare_slots > 0) line.push_back({static_cast<int>(j), true});
    }
  }
  return line;
}

bool Pass::Run() {
  const std::vector<Turn> line = Line();
  for (const Turn& turn : line) {
    if (stale_) return true;
    const bool waits = IsWaiting(world_.job(turn.job).phase);
    if (!turn.spares) {
      FirstRound(turn.job);
    } else if (!waits && (standing_.owns[turn.job] || started_now_[turn.job])) {
      KeepSpares(turn.job);
    } else {
      deferred_.push_back(turn);
    }
  }
  world_.ledger().EndFirstRound();
  for (const Turn& turn : deferred_) {
    if (stale_) return true;
    if (!turn.spares) {
      SecondRound(turn.job);
    } else {
      KeepSpares(turn.job);
    }
  }
  return changed_;
}

void Pass::Leave(int job, const NodePlacement& leaves) {
  world_.Leave(job, leaves);
  reservations_.Forget(job, leaves);
  const int queue = world_.job(job).queue;
  if (queue >= 0 && world_.ledger().HasQuota(queue)) stale_ = true;
  for (const NodeSlots& on : leaves) {
    const int kind = world_.cluster().nodes()[on.node].kind;
    if (world_.ClaimedBy(kind) >= 0 || world_.WaitingFor(kind) >= 0) stale_ = true;
  }
}

void Pass::KeepSpares(int job) {
  const JobState& state = world_.job(job);
  if (!IsActive(state.phase)) return;
  int64_t kept = 0;
  if (FreeOn(world_.open(), world_.kinds(job)) > 0) {
    const Withheld withheld(world_, job);
    {
      // Preferably on other workers: a spare on the job's own worker is lost together with it.
      ChangedForNow own(world_.open());
      for (const NodeSlots& on : state.active) own.Set(on.node, 0);
      kept = reservations_.KeepFree(job, state.job->spare_slots);
    }
    kept += reservations_.KeepFree(job, state.job->spare_slots - kept);
  }
  if (kept < state.job->spare_slots) few_spares_.emplace_back(job, kept);
}

void Pass::Wait(int job, WaitKind kind, int behind, std::string reason) {
  Waiting waiting{.job = world_.name(job), .kind = kind, .reason = std::move(reason)};
  if (behind >= 0) waiting.behind = world_.name(behind);
  waiting_.emplace_back(job, std::move(waiting));
}

int64_t Pass::OwnedAhead(int job) const {
  return standing_.ahead[job] + started_[world_.job(job).queue];
}

void Pass::FirstRound(int job) {
  const JobState& state = world_.job(job);
  std::string never = NeverReason(world_, job);
  if (!never.empty()) return Wait(job, WaitKind::kNever, -1, std::move(never));
  if (state.phase == JobPhase::kQueued && state.job->not_before_ms > world_.now_ms()) {
    return Wait(job, WaitKind::kBackOff, -1, "");
  }
  const int size = SmallestSize(*state.job);
  if (world_.ledger().Owns(state.queue, OwnedAhead(job), size)) {
    Attempt(job, /*owns=*/true);
    if (state.phase == JobPhase::kStarting) started_[state.queue] += size;
    return;
  }
  world_.ledger().Defer(state.queue, size);
  deferred_.push_back({job, false});
  int& least = least_deferred_[state.queue];
  least = least == 0 ? size : std::min(least, size);
}

void Pass::SecondRound(int job) {
  Attempt(job, /*owns=*/false);
  const JobState& state = world_.job(job);
  if (state.phase != JobPhase::kStarting || !world_.ledger().HasQuota(state.queue)) return;
  // Without this borrower, a job behind it in the queue may become an owner.
  const int64_t owned = standing_.owned[state.queue] + started_[state.queue];
  const int64_t quota = world_.ledger().account(state.queue).queue->quota;
  if (owned + least_deferred_[state.queue] <= quota) stale_ = true;
}

void Pass::Attempt(int job, bool owns) {
  const JobState& state = world_.job(job);
  const int size = SmallestSize(*state.job);
  // A job that waits ahead in the queue has a claim to its quota: no job borrows past it.
  if (!owns && world_.ledger().HasQuota(state.queue) &&
      world_.ledger().account(state.queue).claimant >= 0) {
    return WaitForQuota(job, size);
  }
  const bool quota = world_.ledger().OverQueue(state.queue, size) == 0 &&
                     world_.ledger().OverCohort(state.queue, size) == 0;
  // Only a recovering job gets here during its backoff: it also keeps its claim to slots.
  const bool early = state.job->not_before_ms > world_.now_ms();
  if (!early) {
    if (quota && StartOnOpen(job, size)) return;
    if (quota && StartOnLent(job, size)) return;
    if (quota && world_.SoonOpenOn(world_.kinds(job)) > 0 && StartOnSoon(job, size)) return;
    if (TakeFromOthers(job, size, owns)) return;
  }
  if (!quota) return WaitForQuota(job, size);
  WaitForSlots(job, size);
}

void Pass::Start(int job, const NodePlacement& placement) {
  JobState& state = world_.job(job);
  world_.Promise(job, placement);
  state.phase = JobPhase::kStarting;
  state.changed = changed_ = true;
  state.action = Action::kStart;
  started_now_[job] = true;
  if (state.job->expected_ms > 0) state.end_ms = world_.now_ms() + state.job->expected_ms;
  reservations_.Expect(job);
}

bool Pass::StartOnOpen(int job, int size) {
  NodePlacement placement;
  {
    const Withheld withheld(world_, job);
    placement = Place(world_.open(), world_.kinds(job), size);
  }
  if (placement.empty()) return false;
  Start(job, placement);
  return true;
}

bool Pass::StartOnLent(int job, int size) {
  const int64_t lasts_ms = world_.job(job).job->expected_ms;
  if (lasts_ms <= 0) return false;
  EligibleKinds kinds = world_.kinds(job);
  std::erase_if(kinds, [&](const EligibleKind& kind) {
    return world_.LendUntil(kind.kind) < world_.now_ms() + lasts_ms;
  });
  NodePlacement placement;
  {
    const Withheld withheld(world_, job);
    placement = Place(world_.idle(), kinds, size);
  }
  if (placement.empty()) return false;
  Start(job, placement);
  return true;
}

bool Pass::StartOnSoon(int job, int size) {
  NodePlacement placement;
  {
    const Withheld withheld(world_, job);
    placement = Place(world_.ample(), world_.kinds(job), size);
  }
  if (placement.empty()) return false;
  Start(job, placement);
  return true;
}

bool Pass::TakeFromOthers(int job, int size, bool owns) {
  int64_t free = 0;
  {
    const Withheld withheld(world_, job);
    free = FreeOn(world_.ample(), world_.kinds(job));
  }
  const int queue = world_.job(job).queue;
  const Needs needs{.slots = std::max<int64_t>(0, size - free),
                    .queue = world_.ledger().OverQueue(queue, size),
                    .cohort = world_.ledger().OverCohort(queue, size)};
  const std::vector<Victim> victims = victims_.Find(job, needs, owns, standing_);
  if (victims.empty()) return false;
  for (const Victim& victim : victims) {
    JobState& state = world_.job(victim.job);
    Leave(victim.job, victim.leaves);
    state.changed = changed_ = true;
    state.helps = job;
    const bool shrinks = victim.keeps > 0;
    state.action = shrinks ? Action::kResize : Action::kPreempt;
    state.phase = shrinks ? JobPhase::kResizing : JobPhase::kStopping;
    state.reason = VictimReason(world_, victim.job, job, shrinks);
  }
  return StartOnSoon(job, size);
}

void Pass::WaitForQuota(int job, int size) {
  Ledger& ledger = world_.ledger();
  const int queue = world_.job(job).queue;
  const bool over_queue = ledger.OverQueue(queue, size) > 0;
  const bool over_cohort = ledger.OverCohort(queue, size) > 0;
  int behind = ledger.account(queue).claimant;
  if (behind < 0 && over_cohort && !over_queue) behind = ledger.cohort(queue)->waiting;
  Wait(job, WaitKind::kQuota, behind, QuotaReason(world_, job, over_queue, behind));
  for_cohort_[job] = over_cohort && !over_queue;
  ledger.Claim(queue, size, job);
  if (over_queue) ledger.WaitForQueue(queue, job);
  if (over_cohort) ledger.WaitForCohort(queue, job);
}

void Pass::WaitForSlots(int job, int size) {
  const EligibleKinds& kinds = world_.kinds(job);
  int behind = -1;
  for (const EligibleKind& kind : kinds) {
    const int first = world_.WaitingFor(kind.kind);
    if (first >= 0 && (behind < 0 || first < behind)) behind = first;
  }
  for (size_t k = 0; k < kinds.size() && behind < 0; ++k) {
    behind = world_.ClaimedBy(kinds[k].kind);
  }
  const int64_t not_before_ms = world_.job(job).job->not_before_ms;
  const bool early = not_before_ms > world_.now_ms();
  const Withheld withheld(world_, job);
  const bool fits = FreeOn(world_.open(), kinds) >= size;
  const Reservation reservation = reservations_.Reserve(job, size, not_before_ms);
  if (early && fits) {
    Wait(job, WaitKind::kBackOff, -1, "");
  } else {
    Wait(job, WaitKind::kSlots, behind, SlotsReason(world_, job, behind, reservation.due_ms));
    world_.WaitFor(kinds, job);
  }
  Waiting& waiting = waiting_.back().second;
  waiting.due_ms = reservation.due_ms;
  waiting.reserved = world_.cluster().Named(reservation.slots);
  world_.ledger().Claim(world_.job(job).queue, size, job);
}

}  // namespace nibble::scheduler

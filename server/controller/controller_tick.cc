#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/controller.h"
#include "server/controller/log.h"
#include "server/scheduler/plan.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

// A plan is made at least this often: times within it pass without an update.
constexpr int64_t kPlanEveryMs = 1000;

std::map<std::string, std::string> ReasonsOf(const scheduler::Decisions& decisions) {
  std::map<std::string, std::string> reasons;
  for (const scheduler::Waiting& waiting : decisions.waiting) {
    reasons[waiting.job] = waiting.reason;
  }
  for (const scheduler::Decision& decision : decisions.actions) {
    if (decision.action == scheduler::Action::kStart) reasons[decision.job] = decision.reason;
  }
  return reasons;
}

}  // namespace

void Controller::Tick() {
  std::lock_guard lock(tick_mutex_);
  if (!ledger_->Health().ok()) return;
  if (!store_->CheckPlace().ok()) {
    // Changes nothing; the ledger finds that its store has stopped, and says so.
    ChangeAlone([](const State&) -> MaybeUpdate { return std::nullopt; }, "look at the store");
    return;
  }
  const int64_t now_ms = clock_.SteadyMs();
  EndLeases(now_ms);
  EndSilentSessions(now_ms);
  hub_.CutStalled(now_ms);
  for (const SwitchAnswers::Answer& answer : switches_.TakeDue(now_ms)) answer();
  EndStops(now_ms);
  PlanSlots(now_ms);
  CareForCheckpoints();
  TrimHistory();
}

void Controller::EndLeases(int64_t now_ms) {
  for (const Leases::Lease& lease : live_.TakeExpired(now_ms)) {
    metrics_.LeaseExpired();
    const std::string reason = absl::StrCat("not heard from for ", now_ms - lease.heard_ms,
                                            " ms; its lease is ", options_.lease_ms, " ms");
    Log(LogLevel::kWarning, absl::StrCat("worker ", lease.worker, " is lost: ", reason));
    ChangeAlone(
        [&](const State& state) -> MaybeUpdate {
          const v1::WorkerRecord* const worker = state.FindWorker(lease.worker);
          if (worker == nullptr || !worker->present() ||
              worker->identity().incarnation() != lease.incarnation) {
            return std::nullopt;
          }
          return DecideWorkerLost(state, lease.worker, lease.incarnation, reason, CoordinatorNow());
        },
        absl::StrCat("loss of ", lease.worker));
  }
}

void Controller::EndStops(int64_t now_ms) {
  using JobAttempt = std::pair<std::string, int64_t>;
  const std::vector<JobAttempt> over = ledger_->Read([this, now_ms](const State& state) {
    std::vector<JobAttempt> jobs;
    for (const auto& [number, id] : state.index().unfinished()) {
      const v1::JobRecord& job = *state.FindJob(id);
      if (!job.attempt().stopping()) continue;
      if (moments_.Note(state, job, now_ms).stop_by_ms > now_ms) continue;
      jobs.emplace_back(id, job.attempt().number());
    }
    return jobs;
  });
  for (const auto& [job, attempt] : over) {
    ChangeAlone(
        [&, &job = job, attempt = attempt](const State& state) {
          return DecideStopDeadline(state, job, attempt, CoordinatorNow());
        },
        absl::StrCat("stop of ", job));
  }
}

bool Controller::Launch(const std::string& job, const scheduler::Placement& placement,
                        const std::string& reason) {
  bool launched = false;
  ChangeAlone(
      [&](const State& state) -> MaybeUpdate {
        const v1::JobRecord* const record = state.FindJob(job);
        if (record == nullptr || record->has_attempt()) return std::nullopt;
        const int64_t now_ms = clock_.SteadyMs();
        if (moments_.Note(state, *record, now_ms).not_before_ms > now_ms) return std::nullopt;
        const auto slots = ChooseSlots(state, placement);
        if (!slots) return std::nullopt;
        if (!WhyNotLaunched(state, *record).empty()) return std::nullopt;
        const absl::StatusOr<Resume> resume = ChooseResume(state, *record);
        if (!resume.ok()) return std::nullopt;
        MaybeUpdate update = DecideLaunch(
            state, job, *slots, resume->from,
            resume->remark.empty() ? reason : absl::StrCat(reason, "; ", resume->remark),
            CoordinatorNow());
        launched = update.ok() && update->has_value();
        return update;
      },
      absl::StrCat("launch of ", job));
  return launched;
}

void Controller::Carry(const scheduler::Decision& decision, int64_t now_ms) {
  if (decision.action == scheduler::Action::kStart) {
    if (!Launch(decision.job, decision.placement, decision.reason)) {
      promises_.reserved[decision.job] = decision.placement;
    }
    return;
  }
  const int64_t grace_ms = std::clamp<int64_t>(decision.deadline_ms - now_ms, 1, kMaxGraceMs);
  ChangeAlone(
      [&](const State& state) {
        return DecidePreempt(state, decision.job, decision.reason, grace_ms, CoordinatorNow());
      },
      absl::StrCat("stop of ", decision.job));
  if (decision.action == scheduler::Action::kResize) {
    promises_.resizing[decision.job] = decision.placement;
  }
}

void Controller::PlanSlots(int64_t now_ms) {
  // Promises first: slots that were waited for may be free by now.
  ledger_->ReadDecided([this](const State& state) { DropBroken(state, promises_); });
  std::erase_if(promises_.reserved, [this](const auto& promise) {
    return Launch(promise.first, promise.second, "the slots it waited for are free");
  });
  const int64_t sequence =
      ledger_->ReadDecided([](const State& state) { return state.sequence(); });
  if (sequence == planned_sequence_ && now_ms - planned_ms_ < kPlanEveryMs) return;
  std::map<std::string, std::string> held_back;
  const auto fill = [&](const State& state) -> std::optional<scheduler::Snapshot> {
    if (state.sequence() < sequence) return std::nullopt;
    held_back = HeldForRecovery(state);
    held_back.merge(HeldBack(state));
    DropBroken(state, promises_);
    return FillSnapshot(state, promises_, held_back, moments_, now_ms);
  };
  // Of a large cluster it takes many milliseconds, in which reports wait for whoever holds the lock
  // of what is decided, and not for who reads what is shown. Mostly that is as far.
  std::optional<scheduler::Snapshot> filled = ledger_->Read(fill);
  if (!filled) filled = ledger_->ReadDecided(fill);
  const scheduler::Snapshot& snapshot = *filled;
  // The plan is made without a lock: each of its steps is decided on what is by then, and one that
  // no longer fits is dropped for the next plan.
  const Stopwatch planning;
  const absl::StatusOr<scheduler::Decisions> decisions =
      scheduler::Plan(snapshot, now_ms, options_.policy);
  if (!decisions.ok()) {
    Log(LogLevel::kError, absl::StrCat("no plan: ", decisions.status().ToString()));
    return;
  }
  metrics_.Planned(planning.seconds(), *decisions);
  std::map<std::string, std::string> reasons = ReasonsOf(*decisions);
  reasons.merge(held_back);
  for (const auto& [job, placement] : promises_.reserved) {
    reasons.try_emplace(job, absl::StrCat("slots are promised to it on ", placement[0].worker,
                                          "; it waits for those who leave them"));
  }
  live_.SetPending(std::move(reasons));
  planned_sequence_ = sequence;
  planned_ms_ = now_ms;
  for (const scheduler::Decision& decision : decisions->actions) Carry(decision, now_ms);
}

void Controller::CareForCheckpoints() {
  TrimCheckpoints();
  {
    std::lock_guard lock(mutex_);
    for (const std::string& job : std::exchange(to_care_for_, {})) care_.JobChanged(job);
    if (std::exchange(workers_changed_, false)) care_.WorkersChanged();
  }
  if (!care_.behind()) return;
  // Only what is durable is worked on.
  const bool other_work = ledger_->Read([this](const State& state) { return care_.Step(state); });
  for (const std::string& job : care_.TakeSurplus()) GiveUpSurplus(job);
  if (!other_work) return;
  std::map<std::string, CheckpointWork> work = care_.Work();
  std::vector<std::function<void()>> notify;
  {
    std::lock_guard lock(mutex_);
    work_ = std::move(work);
    for (const auto& [worker, its_work] : work_) AddNotify(worker, notify);
  }
  for (const auto& call : notify) call();
}

void Controller::TrimCheckpoints() {
  std::set<std::string> jobs;
  {
    std::lock_guard lock(mutex_);
    jobs.swap(to_trim_);
  }
  for (const std::string& job : jobs) {
    const std::vector<v1::CheckpointRef> beyond =
        ledger_->ReadDecided([&](const State& state) { return BeyondRetention(state, job); });
    for (const v1::CheckpointRef& ref : beyond) {
      ChangeAlone([&](const State& state) { return DecideRetention(state, ref, CoordinatorNow()); },
                  absl::StrCat("retention of ", job));
    }
  }
}

void Controller::GiveUpSurplus(const std::string& job) {
  ledger_->Change(
      [&](const State& state) {
        return DecideSurplus(state, job, options_.copies, CoordinatorNow());
      },
      [this, job](const absl::Status& status) {
        if (status.ok()) return;
        Log(LogLevel::kWarning, absl::StrCat("surplus of ", job, ": ", status.ToString()));
        std::lock_guard lock(mutex_);
        to_care_for_.insert(job);
      });
}

void Controller::TrimHistory() {
  ChangeAlone([this](const State& state) { return DecideForget(state, CoordinatorNow()); },
              "forgetting of finished jobs");
  const StoreInfo info = store_->Info();
  const auto kept = static_cast<uint64_t>(options_.journal_updates);
  // In large pieces: trimming is a write of its own.
  if (info.last_sequence < info.first_sequence + kept + kept / 10) return;
  const absl::Status status = store_->TrimJournal(info.last_sequence - kept);
  if (!status.ok()) Log(LogLevel::kWarning, absl::StrCat("journal: ", status.ToString()));
}

}  // namespace nibble

// Planning: launches, stops and promises, as the scheduler decides.
#include <algorithm>
#include <map>
#include <optional>
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

// Plans at least this often: some of its deadlines pass without an update.
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

void Controller::PlanSlots(int64_t now_ms) {
  // Promises first: their slots may be free by now.
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
  // Filling takes many milliseconds for a large cluster. Prefer the shown state, which usually is
  // as new as the decided one.
  std::optional<scheduler::Snapshot> filled = ledger_->Read(fill);
  if (!filled) filled = ledger_->ReadDecided(fill);
  const scheduler::Snapshot& snapshot = *filled;
  // Plans without a lock: each step is decided again on the then current state, and a step that no
  // longer fits is left to the next plan.
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

std::string Controller::WhyNotLaunched(const State& state, const v1::JobRecord& job) const {
  const std::string stray =
      orphans_.StrayOf(job.id(), job.has_attempt() ? job.attempt().number() : 0);
  if (!stray.empty()) {
    return absl::StrCat("waits for the ranks on ", stray,
                        " that it was adopted with to end with a checkpoint");
  }
  const int64_t restored_ms = restored_ms_.load();
  const int64_t since_ms = clock_.SteadyMs() - restored_ms;
  if (restored_ms == 0 || since_ms < 0 || since_ms > options_.lease_ms) return "";
  return absl::StrCat("waits for workers to report what they have: the store is in epoch ",
                      state.store().epoch(), " since ", since_ms, " ms");
}

std::map<std::string, std::string> Controller::HeldForRecovery(const State& state) const {
  std::map<std::string, std::string> held;
  if (restored_ms_ == 0 && orphans_.empty()) return held;
  for (const auto& [number, id] : state.index().unfinished()) {
    const v1::JobRecord& job = *state.FindJob(id);
    if (job.has_attempt() || job.state() == v1::JOB_STATE_PAUSED) continue;
    std::string why = WhyNotLaunched(state, job);
    if (!why.empty()) held[id] = std::move(why);
  }
  return held;
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

}  // namespace nibble

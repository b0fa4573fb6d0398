#include "server/controller/scheduling_loop.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/controller/log.h"
#include "server/state/decide.h"
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

void SchedulingLoop::Tick(int64_t now_ms) {
  EndStops(now_ms);
  LaunchPromised();
  const int64_t sequence = context_.ledger.Decided()->sequence();
  const bool due = backoff_ends_ms_.has_value() && now_ms >= *backoff_ends_ms_;
  if (sequence == planned_sequence_ && !due && now_ms - planned_ms_ < kPlanEveryMs) return;
  Plan(sequence, now_ms);
}

void SchedulingLoop::LaunchPromised() {
  context_.ledger.ReadDecided([this](const State& state) { DropBroken(state, promises_); });
  std::erase_if(promises_.reserved, [this](const auto& promise) {
    return Launch(promise.first, promise.second, "the slots it waited for are free");
  });
}

void SchedulingLoop::Plan(int64_t sequence, int64_t now_ms) {
  std::map<std::string, std::string> held_back;
  TakenWorkers taken;
  std::set<std::string> never;  // jobs that no checkpoint lets run again
  const auto fill = [&](const State& state) -> std::optional<scheduler::Snapshot> {
    if (state.sequence() < sequence) return std::nullopt;
    held_back = recovery_.HeldBack(state);
    never.clear();
    for (auto& [job, why] : HeldBack(state)) {
      // A job that recovery holds back may yet get a checkpoint from its ranks.
      const bool added = held_back.try_emplace(job, why).second;
      if (added && !WhyNeverResumes(state, *state.FindJob(job)).empty()) never.insert(job);
    }
    taken = recovery_.Taken(state);
    DropBroken(state, promises_);
    DropTaken(taken, promises_);
    scheduler::Snapshot filled =
        FillSnapshot(state, promises_, held_back, context_.moments, now_ms);
    ExcludeTaken(taken, filled);
    return filled;
  };
  // Filling takes many milliseconds for a large cluster. Prefer the shown state, which usually is
  // as new as the decided one.
  std::optional<scheduler::Snapshot> snapshot = context_.ledger.Read(fill);
  if (!snapshot) snapshot = context_.ledger.ReadDecided(fill);
  FailUnresumable(never, now_ms);
  const Stopwatch planning;
  const absl::StatusOr<scheduler::Decisions> decisions =
      scheduler::Plan(*snapshot, now_ms, context_.options.policy);
  if (!decisions.ok()) {
    Log(LogLevel::kError,
        absl::StrCat("the scheduler made no plan: ", decisions.status().ToString()));
    return;
  }
  context_.metrics.Planned(planning.seconds(), *decisions);
  std::map<std::string, std::string> reasons = ReasonsOf(*decisions);
  for (const scheduler::Waiting& waiting : decisions->waiting) {
    const auto of_job = taken.find(waiting.job);
    if (of_job == taken.end()) continue;
    // One of several explains them all.
    absl::StrAppend(&reasons[waiting.job], "; ", of_job->second.begin()->second);
  }
  reasons.merge(held_back);
  for (const auto& [job, placement] : promises_.reserved) {
    reasons.try_emplace(job, absl::StrCat("slots are promised to it on ", placement[0].worker,
                                          "; waits until other jobs have left them"));
  }
  context_.live.SetPending(std::move(reasons));
  planned_sequence_ = sequence;
  planned_ms_ = now_ms;
  backoff_ends_ms_.reset();
  for (const scheduler::Job& job : snapshot->jobs) {
    if (job.not_before_ms <= now_ms) continue;
    backoff_ends_ms_ = std::min(backoff_ends_ms_.value_or(job.not_before_ms), job.not_before_ms);
  }
  for (const scheduler::Decision& decision : decisions->actions) CarryOut(decision, now_ms);
}

void SchedulingLoop::FailUnresumable(const std::set<std::string>& never, int64_t now_ms) {
  std::erase_if(unresumable_since_ms_,
                [&never](const auto& since) { return !never.contains(since.first); });
  for (const std::string& job : never) {
    const int64_t since_ms = unresumable_since_ms_.try_emplace(job, now_ms).first->second;
    if (now_ms - since_ms < kUnresumableMs) continue;
    context_.ledger.ChangeUnawaited(
        [&](const State& state) { return DecideUnresumable(state, job, context_.coordinator()); },
        absl::StrCat("failure of ", job));
  }
}

void SchedulingLoop::CarryOut(const scheduler::Decision& decision, int64_t now_ms) {
  if (decision.action == scheduler::Action::kStart) {
    if (!Launch(decision.job, decision.placement, decision.reason)) {
      promises_.reserved[decision.job] = decision.placement;
    }
    return;
  }
  const int64_t grace_ms = std::clamp<int64_t>(decision.deadline_ms - now_ms, 1, kMaxGraceMs);
  context_.ledger.ChangeUnawaited(
      [&](const State& state) {
        return DecidePreempt(state, decision.job, decision.reason, grace_ms,
                             context_.coordinator());
      },
      absl::StrCat("stop of ", decision.job));
  if (decision.action == scheduler::Action::kResize) {
    promises_.resizing[decision.job] = decision.placement;
  }
}

bool SchedulingLoop::Launch(const std::string& job, const scheduler::Placement& placement,
                            const std::string& reason) {
  bool launched = false;
  context_.ledger.ChangeUnawaited(
      [&](const State& state) -> MaybeUpdate {
        const v1::JobRecord* const record = state.FindJob(job);
        if (record == nullptr || record->has_attempt()) return std::nullopt;
        const int64_t now_ms = context_.clock.SteadyMs();
        if (context_.moments.Note(state, *record, now_ms).not_before_ms > now_ms) {
          return std::nullopt;
        }
        const auto slots = ChooseSlots(state, placement);
        if (!slots) return std::nullopt;
        if (!recovery_.WhyNotLaunched(state, *record).empty()) return std::nullopt;
        const auto taken = recovery_.TakenFor(state, *record);
        for (const scheduler::SlotsOn& on : placement) {
          if (taken.contains(on.worker)) return std::nullopt;
        }
        const absl::StatusOr<Resume> resume = ChooseResume(state, *record);
        if (!resume.ok()) return std::nullopt;
        MaybeUpdate update = DecideLaunch(
            state, job, *slots, resume->from,
            resume->remark.empty() ? reason : absl::StrCat(reason, "; ", resume->remark),
            context_.coordinator());
        launched = update.ok() && update->has_value();
        return update;
      },
      absl::StrCat("launch of ", job));
  return launched;
}

void SchedulingLoop::EndStops(int64_t now_ms) {
  using JobAttempt = std::pair<std::string, int64_t>;
  const std::vector<JobAttempt> over = context_.ledger.Read([this, now_ms](const State& state) {
    std::vector<JobAttempt> jobs;
    for (const auto& [number, id] : state.index().unfinished()) {
      const v1::JobRecord& job = *state.FindJob(id);
      if (!job.attempt().stopping()) continue;
      if (context_.moments.Note(state, job, now_ms).stop_by_ms > now_ms) continue;
      jobs.emplace_back(id, job.attempt().number());
    }
    return jobs;
  });
  for (const auto& [job, attempt] : over) {
    context_.ledger.ChangeUnawaited(
        [&, &job = job, attempt = attempt](const State& state) {
          return DecideStopDeadline(state, job, attempt, context_.coordinator());
        },
        absl::StrCat("end of the stop of ", job));
  }
}

}  // namespace nibble

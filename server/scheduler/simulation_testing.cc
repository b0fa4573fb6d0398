#include "server/scheduler/simulation_testing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/invariants_testing.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/scenario_testing.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {
namespace {

constexpr int64_t kLaunchMs = 5'000;
constexpr int64_t kCheckpointMs = 8'000;
constexpr int64_t kBackOffMs = 30'000;
constexpr int64_t kLookMs = 60'000;  // the scheduler plans at least this often

bool HasSlotsOn(const Job& job, const std::string& worker) {
  const auto on = [&worker](const SlotsOn& slots) { return slots.worker == worker; };
  return std::any_of(job.held.begin(), job.held.end(), on) ||
         std::any_of(job.next.begin(), job.next.end(), on);
}

}  // namespace

Simulation::Simulation(Snapshot cluster, std::function<Job(int, std::mt19937_64&)> make_job,
                       const SimulationOptions& options, uint64_t seed)
    : snapshot_(std::move(cluster)),
      make_job_(std::move(make_job)),
      options_(options),
      random_(seed) {
  snapshot_.jobs.clear();
  At(0, {Kind::kSubmit});
  At(Around(options_.outage_ms), {Kind::kLost});
  At(kLookMs, {Kind::kLook});
}

int64_t Simulation::Around(int64_t mean_ms) {
  return mean_ms / 2 + static_cast<int64_t>(random_() % static_cast<uint64_t>(mean_ms));
}

std::string Simulation::Run(int64_t limit_ms) {
  while (now_ms_ < limit_ms && (submitted_ < options_.jobs || !snapshot_.jobs.empty())) {
    const auto next = events_.begin();
    now_ms_ = next->first;
    const Event event = next->second;
    events_.erase(next);
    Happen(event);
    const std::string broken = PlanOnce();
    if (!broken.empty()) return absl::StrCat("at ", now_ms_, ": ", broken);
  }
  return "";
}

void Simulation::Happen(const Event& event) {
  switch (event.kind) {
    case Kind::kSubmit:
      return Submit();
    case Kind::kLost:
      return Lose();
    case Kind::kLook:
      return At(now_ms_ + kLookMs, {Kind::kLook});
    case Kind::kBack:
      for (Worker& worker : snapshot_.workers) {
        if (worker.name == event.name) worker.state = WorkerState::kReady;
      }
      return;
    default:
      break;
  }
  const auto progress = progress_.find(event.name);
  if (progress == progress_.end() || progress->second.epoch != event.epoch) return;
  Job& job = FindJob(snapshot_, event.name);
  switch (event.kind) {
    case Kind::kUp: {
      // After the jobs that leave its slots.
      for (const SlotsOn& on : job.held) {
        const WorkerUse use = UseOf(snapshot_, on.worker);
        if (use.promised + use.leaving > FindWorker(snapshot_, on.worker)->slots) {
          return At(now_ms_ + kLaunchMs, event);
        }
      }
      job.phase = JobPhase::kRunning;
      return RunOn(job);
    }
    case Kind::kEnd:
      return Finish(event.name);
    case Kind::kFail:
      Account(job);
      job.not_before_ms = now_ms_ + kBackOffMs;
      return Requeue(job, JobPhase::kRecovering);
    case Kind::kLeft:
      return Requeue(job, JobPhase::kQueued);
    case Kind::kResized:
      job.held = std::move(job.next);
      job.next.clear();
      job.phase = JobPhase::kStarting;
      return At(now_ms_ + kLaunchMs, {Kind::kUp, job.name, progress->second.epoch});
    default:
      return;
  }
}

void Simulation::Submit() {
  Job job = make_job_(submitted_, random_);
  job.submitted = now_ms_;
  Progress& progress = progress_[job.name];
  progress.left = SmallestSize(job) * Around(options_.work_ms / 2);
  progress.fails = static_cast<int>(random_() % 100) < options_.failure_percent;
  if (options_.known_ends) job.expected_ms = progress.left / SmallestSize(job);
  history_[job.name].submitted_ms = now_ms_;
  snapshot_.jobs.push_back(std::move(job));
  if (++submitted_ < options_.jobs) At(now_ms_ + Around(options_.arrival_ms), {Kind::kSubmit});
}

void Simulation::Lose() {
  At(now_ms_ + Around(options_.outage_ms), {Kind::kLost});
  Worker& worker = snapshot_.workers[random_() % snapshot_.workers.size()];
  if (worker.state == WorkerState::kLost) return;
  worker.state = random_() % 3 == 0 ? WorkerState::kDraining : WorkerState::kLost;
  At(now_ms_ + Around(options_.outage_ms / 2), {Kind::kBack, worker.name});
  if (worker.state == WorkerState::kDraining) return;
  for (Job& job : snapshot_.jobs) {
    if (IsWaiting(job.phase) || !HasSlotsOn(job, worker.name)) continue;
    Account(job);
    Requeue(job, JobPhase::kRecovering);
  }
}

void Simulation::Account(Job& job) {
  Progress& progress = progress_[job.name];
  if (job.phase == JobPhase::kRunning) {
    progress.left -= SlotsOf(job.held) * (now_ms_ - progress.since_ms);
    progress.left = std::max<int64_t>(progress.left, 1);
  }
  progress.since_ms = now_ms_;
}

void Simulation::RunOn(Job& job) {
  Progress& progress = progress_[job.name];
  progress.since_ms = now_ms_;
  const int64_t lasts_ms = progress.left / SlotsOf(job.held) + 1;
  if (options_.known_ends) job.expected_end_ms = now_ms_ + lasts_ms;
  if (progress.fails) {
    progress.fails = false;
    return At(now_ms_ + lasts_ms / 2, {Kind::kFail, job.name, progress.epoch});
  }
  At(now_ms_ + lasts_ms, {Kind::kEnd, job.name, progress.epoch});
}

void Simulation::Requeue(Job& job, JobPhase phase) {
  Progress& progress = progress_[job.name];
  ++progress.epoch;
  job.phase = phase;
  job.held.clear();
  job.next.clear();
  job.expected_end_ms = 0;
  if (options_.known_ends) job.expected_ms = progress.left / SmallestSize(job) + 1;
}

void Simulation::Finish(const std::string& name) {
  history_[name].finished_ms = now_ms_;
  progress_.erase(name);
  std::erase_if(snapshot_.jobs, [&name](const Job& job) { return job.name == name; });
}

void Simulation::Record(const Decision& decision) {
  JobHistory& history = history_[decision.job];
  Job& job = FindJob(snapshot_, decision.job);
  Progress& progress = progress_[decision.job];
  if (decision.action != Action::kStart) Account(job);
  ++progress.epoch;
  const int64_t epoch = progress.epoch;
  switch (decision.action) {
    case Action::kStart:
      ++history.starts;
      return At(now_ms_ + kLaunchMs, {Kind::kUp, decision.job, epoch});
    case Action::kPreempt:
      if (!decision.helps.empty()) {
        ++history.preempted_for_others;
        history.preempted_for.insert(decision.helps);
      }
      return At(now_ms_ + kCheckpointMs, {Kind::kLeft, decision.job, epoch});
    case Action::kResize:
      if (decision.helps.empty() && SlotsOf(decision.placement) > SlotsOf(job.held)) {
        ++history.grows;
      }
      return At(now_ms_ + kCheckpointMs, {Kind::kResized, decision.job, epoch});
  }
}

std::string Simulation::PlanOnce() {
  const absl::StatusOr<Decisions> plan = Plan(snapshot_, now_ms_, {});
  if (!plan.ok()) return plan.status().ToString();
  const std::vector<std::string> broken = Violations(snapshot_, *plan, now_ms_);
  if (!broken.empty()) {
    return absl::StrCat(absl::StrJoin(broken, "; "), "\n", ToText(snapshot_), ToText(*plan));
  }
  for (const Decision& decision : plan->actions) Record(decision);
  snapshot_ = Apply(std::move(snapshot_), *plan, now_ms_);
  return "";
}

}  // namespace nibble::scheduler::testing

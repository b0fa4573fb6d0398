#include "server/controller/checkpoint_care_rounds.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "server/controller/checkpoint_care.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

constexpr std::pair<int64_t, int64_t> kStart = {std::numeric_limits<int64_t>::min(), 0};

void Append(const std::map<std::string, CheckpointWork>& from,
            std::map<std::string, CheckpointWork>& to) {
  for (const auto& [worker, work] : from) {
    CheckpointWork& all = to[worker];
    all.replicas.insert(all.replicas.end(), work.replicas.begin(), work.replicas.end());
    all.tasks.insert(all.tasks.end(), work.tasks.begin(), work.tasks.end());
  }
}

}  // namespace

bool CheckpointCareRounds::behind() const {
  return workers_changed_ || !changed_.empty() || lap_.has_value() || lap_again_ ||
         (left_out_ && room_);
}

bool CheckpointCareRounds::Step(const State& state) {
  other_work_ = false;
  if (std::exchange(workers_changed_, false)) TakeWorkersChanged(state);
  int64_t looks = 0;
  while (!changed_.empty() && looks < looks_per_step_) {
    looks += LookAtWithOrigin(state, TakeChanged());
  }
  // The lap advances even if jobs change all the time.
  StepLap(state, std::max(looks_per_step_ - looks, looks_per_step_ / 4));
  return other_work_;
}

void CheckpointCareRounds::TakeWorkersChanged(const State& state) {
  takers_ = TakersOf(state);
  for (const auto& [number, id] : state.index().unfinished()) changed_.insert(id);
  // The outstanding requests name workers.
  for (const auto& [id, work] : finished_) changed_.insert(id);
  lap_again_ = true;
}

std::string CheckpointCareRounds::TakeChanged() {
  auto next = changed_.upper_bound(last_changed_);
  if (next == changed_.end()) next = changed_.begin();
  last_changed_ = *next;
  changed_.erase(next);
  return last_changed_;
}

void CheckpointCareRounds::StepLap(const State& state, int64_t looks) {
  if (!lap_.has_value()) {
    if (!lap_again_ && !(left_out_ && room_)) return;
    lap_ = kStart;
    lap_again_ = left_out_ = room_ = false;
  }
  const auto& finished = state.index().finished();
  auto next = finished.upper_bound(*lap_);
  for (int64_t done = 0; next != finished.end() && done < looks; ++next) {
    done += LookAt(state, next->second);
    lap_ = next->first;
  }
  if (next == finished.end()) lap_.reset();
}

int64_t CheckpointCareRounds::LookAtWithOrigin(const State& state, const std::string& job) {
  int64_t looks = LookAt(state, job);
  // Its attempt may have been the reason to keep its origin.
  const v1::JobRecord* const record = state.FindJob(job);
  if (record != nullptr && record->has_origin()) {
    looks += LookAt(state, record->origin().checkpoint().job());
  }
  return looks;
}

int64_t CheckpointCareRounds::LookAt(const State& state, const std::string& job) {
  const std::map<std::string, int64_t> before = Forget(job);
  const int64_t looks = Refresh(state, job);
  for (const auto& [worker, requested] : before) {
    const auto now = requested_.find(worker);
    room_ |= now == requested_.end() || now->second < requested;
  }
  return looks;
}

std::map<std::string, int64_t> CheckpointCareRounds::Forget(const std::string& job) {
  other_work_ |= unfinished_.erase(job) > 0;
  std::map<std::string, int64_t> before;
  const auto found = finished_.find(job);
  if (found == finished_.end()) return before;
  for (const auto& [worker, work] : found->second) {
    const auto requested = requested_.find(worker);
    if (requested == requested_.end()) continue;  // of tasks alone
    before.insert(*requested);
    requested->second -= std::ssize(work.replicas);
    if (requested->second == 0) requested_.erase(requested);
  }
  finished_.erase(found);
  other_work_ = true;
  return before;
}

int64_t CheckpointCareRounds::Refresh(const State& state, const std::string& job) {
  const v1::JobRecord* const record = state.FindJob(job);
  if (record == nullptr) return 1;
  JobCare care = CareFor(state, job, copies_, takers_);
  if (care.surplus) surplus_.insert(job);
  if (care.work.empty()) return care.looks;
  if (IsFinished(record->state())) {
    Request(job, std::move(care.work));
  } else {
    unfinished_.emplace(job, std::move(care.work));
    other_work_ = true;
  }
  return care.looks;
}

void CheckpointCareRounds::Request(const std::string& job,
                                   std::map<std::string, CheckpointWork> work) {
  for (auto& [worker, its] : work) {
    const auto requested = requested_.find(worker);
    const int64_t before = requested == requested_.end() ? 0 : requested->second;
    const int64_t more = std::min<int64_t>(std::ssize(its.replicas), kMaxRequested - before);
    left_out_ |= more < std::ssize(its.replicas);
    its.replicas.resize(static_cast<size_t>(more));
    if (more > 0) requested_[worker] = before + more;
  }
  std::erase_if(work, [](const auto& its) {
    return its.second.replicas.empty() && its.second.tasks.empty();
  });
  if (work.empty()) return;
  finished_.emplace(job, std::move(work));
  other_work_ = true;
}

std::map<std::string, CheckpointWork> CheckpointCareRounds::Work() const {
  std::map<std::string, CheckpointWork> all;
  for (const ByJob* jobs : {&unfinished_, &finished_}) {
    for (const auto& [job, work] : *jobs) Append(work, all);
  }
  return all;
}

}  // namespace nibble

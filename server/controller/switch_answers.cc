#include "server/controller/switch_answers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

const v1::RecipeRevision* Find(const v1::TimelineRecord& timeline, int64_t number) {
  for (const v1::RecipeRevision& revision : timeline.revisions()) {
    if (revision.number() == number) return &revision;
  }
  return nullptr;
}

// Ranks run under it, or already under a later one.
bool HasBegun(const v1::TimelineRecord& timeline, const v1::RecipeRevision& revision) {
  return revision.confirmed() || timeline.in_force() >= revision.number();
}

// No progress of the ranks will tell more about the revision.
bool IsSettled(const State& state, const std::string& id, int64_t number) {
  const v1::JobRecord* const job = state.FindJob(id);
  if (job == nullptr || job->state() != v1::JOB_STATE_RUNNING) return true;
  const v1::TimelineRecord& timeline = *state.FindTimeline(id);
  const v1::RecipeRevision* const revision = Find(timeline, number);
  return revision == nullptr || !revision->refused().empty() || HasBegun(timeline, *revision);
}

}  // namespace

bool SwitchIsNear(const State& state, const std::string& job, int64_t revision,
                  const LiveProgress& live, double step_seconds, int64_t wait_ms) {
  if (IsSettled(state, job, revision)) return false;
  const int64_t first_step = Find(*state.FindTimeline(job), revision)->first_step();
  const double seconds = static_cast<double>(first_step - live.next_step) * step_seconds;
  // Ranks have advanced since their last report: allow twice the time.
  return seconds * 1000 <= 2 * static_cast<double>(wait_ms);
}

absl::StatusOr<int64_t> SwitchStep(const State& state, const std::string& id, int64_t number,
                                   const LiveProgress& live, int64_t requested) {
  const v1::JobRecord* const job = state.FindJob(id);
  if (job == nullptr) return requested;
  const v1::TimelineRecord& timeline = *state.FindTimeline(id);
  const v1::RecipeRevision* const revision = Find(timeline, number);
  if (revision == nullptr) return requested;
  if (!revision->refused().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision: ", number,
                     " was refused by the ranks, and the recipe in effect "
                     "stays: ",
                     revision->refused()));
  }
  if (HasBegun(timeline, *revision)) return revision->first_step();
  int64_t earliest = 0;
  if (job->has_attempt() && job->attempt().number() == live.attempt) {
    // The current step keeps its recipe.
    const bool running = job->state() == v1::JOB_STATE_RUNNING;
    earliest = std::min(live.next_step + (running ? 1 : 0), job->shape().steps());
  }
  return std::max(revision->first_step(), earliest);
}

template <class Over>
std::vector<SwitchAnswers::Answer> SwitchAnswers::Take(
    std::multimap<std::string, Waiting>::iterator begin,
    std::multimap<std::string, Waiting>::iterator end, Over over) {
  std::vector<Answer> taken;
  while (begin != end) {
    if (!over(begin->second)) {
      ++begin;
      continue;
    }
    taken.push_back(std::move(begin->second.answer));
    begin = waiting_.erase(begin);
  }
  return taken;
}

bool SwitchAnswers::Add(const std::string& job, int64_t revision, int64_t until_ms, Answer answer) {
  MutexLock lock(&mutex_);
  if (closed_) return false;
  waiting_.emplace(job, Waiting{revision, until_ms, std::move(answer)});
  return true;
}

std::vector<SwitchAnswers::Answer> SwitchAnswers::TakeSettled(const State& state,
                                                              const std::string& job) {
  MutexLock lock(&mutex_);
  const auto [begin, end] = waiting_.equal_range(job);
  return Take(begin, end, [&](const Waiting& one) { return IsSettled(state, job, one.revision); });
}

std::vector<SwitchAnswers::Answer> SwitchAnswers::TakeDue(int64_t now_ms) {
  MutexLock lock(&mutex_);
  return Take(waiting_.begin(), waiting_.end(),
              [now_ms](const Waiting& one) { return one.until_ms <= now_ms; });
}

std::vector<SwitchAnswers::Answer> SwitchAnswers::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  return Take(waiting_.begin(), waiting_.end(), [](const Waiting&) { return true; });
}

}  // namespace nibble

#include "server/controller/watch_hub.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/job_machine.h"

namespace nibble {
namespace {

// A reader of a beginning who takes nothing for so long lets others begin.
constexpr int64_t kSlowMs = 1000;
// Fewer watches than this leave nothing worth a walk through the heap.
constexpr size_t kTrimFrom = 32;

}  // namespace

WatchHub::WatchHub(const WatchLimits& limits)
    : limits_(limits), log_(std::make_shared<WatchLog>(limits.kept, limits.kept_bytes)) {}

absl::StatusOr<std::shared_ptr<Watch>> WatchHub::Open(const v1::WatchJobsRequest& request,
                                                      Watch::Begin begin,
                                                      std::function<void()> notify) {
  if (static_cast<size_t>(request.jobs_size()) > limits_.jobs_per_watch) {
    return absl::InvalidArgumentError(absl::StrCat("jobs: ", request.jobs_size(),
                                                   " are named; allowed: ", limits_.jobs_per_watch,
                                                   " and fewer"));
  }
  auto watch = std::make_shared<Watch>(request, log_, std::move(begin), std::move(notify));
  std::lock_guard lock(mutex_);
  if (watches_.size() >= limits_.watches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("watches: ", watches_.size(), " are open, as many as are allowed"));
  }
  watches_.insert(watch);
  most_ = std::max(most_, watches_.size());
  of_all_ += watch->of_all() ? 1 : 0;
  for (const std::string& job : watch->jobs()) ++watched_[job];
  return watch;
}

void WatchHub::Close(const std::shared_ptr<Watch>& watch) {
  watch->Close();
  WatchLog::Kept dropped;
  bool trims = false;
  {
    std::lock_guard lock(mutex_);
    if (watches_.erase(watch) == 0) return;
    trims = most_ >= kTrimFrom && watches_.size() * 2 <= most_;
    if (trims) most_ = watches_.size();
    of_all_ -= watch->of_all() ? 1 : 0;
    for (const std::string& job : watch->jobs()) {
      const auto watched = watched_.find(job);
      if (--watched->second == 0) watched_.erase(watched);
    }
    if (watches_.empty()) dropped = log_->TakeAll();
  }
  dropped.clear();
  pump_.Release(watch);
  // The allocator keeps freed memory unless it is asked to return it to the system.
  if (trims) pump_.Run([] { malloc_trim(0); });
}

void WatchHub::CutStalled(int64_t now_ms) {
  std::vector<std::shared_ptr<Watch>> watches;
  bool pass_by = false;
  {
    std::lock_guard lock(mutex_);
    watches.assign(watches_.begin(), watches_.end());
    pass_by = now_ms - passed_by_ms_ >= kSlowMs;
    if (pass_by) passed_by_ms_ = now_ms;
  }
  if (pass_by) pump_.PassSlowBy();
  for (const auto& watch : watches) {
    // Its reader is told also while a write waits for him.
    if (watch->CutIfStalled(now_ms, limits_.stall_ms)) pump_.Ask(watch);
  }
}

WatchHub::Counts WatchHub::Count() const {
  std::lock_guard lock(mutex_);
  return {watches_.size(), waits_.size()};
}

bool WatchHub::IsWatched(const std::string& job) const {
  std::lock_guard lock(mutex_);
  return of_all_ > 0 || watched_.contains(job);
}

void WatchHub::Publish(int64_t sequence, std::vector<WatchLog::Entry> news) {
  const bool any = !news.empty();
  log_->Append(sequence, std::move(news));
  if (any) pump_.Wake();
}

void WatchHub::PublishSamples(std::vector<WatchLog::Entry> samples) {
  log_->AppendSamples(std::move(samples));
  pump_.Wake();
}

std::optional<absl::Status> WaitOver(const std::string& job, const std::set<v1::JobState>& states,
                                     v1::JobState now) {
  if (states.empty() ? IsFinished(now) : states.contains(now)) return absl::OkStatus();
  if (!IsFinished(now)) return std::nullopt;
  return absl::FailedPreconditionError(absl::StrCat("states: ", job, " is ", StateName(now),
                                                    " and can no longer be in one of those"));
}

absl::StatusOr<int64_t> WatchHub::Wait(const std::string& job, std::set<v1::JobState> states,
                                       Done done) {
  std::lock_guard lock(mutex_);
  if (waits_.size() >= limits_.waits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("waits: ", waits_.size(), " are open, as many as are allowed"));
  }
  const int64_t number = next_wait_++;
  waits_[number] = {job, std::move(states), std::move(done)};
  waits_of_[job].insert(number);
  return number;
}

bool WatchHub::EndWait(int64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = waits_.find(number);
  if (found == waits_.end()) return false;
  const auto of = waits_of_.find(found->second.job);
  of->second.erase(number);
  if (of->second.empty()) waits_of_.erase(of);
  waits_.erase(found);
  return true;
}

void WatchHub::Moved(const std::string& job, v1::JobState state) {
  // Whoever waits is told in the hub's thread: there may be many, and changes come after this one.
  std::vector<std::pair<Done, absl::Status>> over;
  {
    std::lock_guard lock(mutex_);
    const auto of = waits_of_.find(job);
    if (of == waits_of_.end()) return;
    std::erase_if(of->second, [&](int64_t number) {
      Waiting& waiting = waits_.at(number);
      std::optional<absl::Status> end = WaitOver(job, waiting.states, state);
      if (!end) return false;
      over.emplace_back(std::move(waiting.done), *std::move(end));
      waits_.erase(number);
      return true;
    });
    if (of->second.empty()) waits_of_.erase(of);
  }
  if (over.empty()) return;
  pump_.Run([over = std::move(over)] {
    for (const auto& [done, status] : over) done(status);
  });
}

}  // namespace nibble

#include "server/controller/watch_hub.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/controller/log.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

// Below the rest of the program: a tenth of the time of a thread that wants the same core.
constexpr int kNicer = 10;
constexpr int kNicest = 19;

// A reader of a beginning who takes nothing for this long lets others begin.
constexpr int64_t kSlowMs = 1000;
// Fewer watches leave too little memory to be worth returning.
constexpr size_t kTrimFrom = 32;

}  // namespace

WatchPump::WatchPump() : thread_([this] { Serve(); }) {}

WatchPump::~WatchPump() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
  }
  changed_.Signal();
  thread_.join();
}

void WatchPump::RequestTurn(std::shared_ptr<Watch> watch) {
  watch->set_waits_for_turn(true);
  Watches one = {std::move(watch)};
  {
    MutexLock lock(&mutex_);
    const Watch::Phase phase = one.front()->phase();
    if (phase == Watch::Phase::kCaughtUp) beginning_.erase(one.front());
    Watches& queue = phase == Watch::Phase::kCaughtUp ? ready_
                     : phase == Watch::Phase::kBegun  ? begun_
                                                      : fresh_;
    queue.splice(queue.end(), one);
  }
  changed_.Signal();
}

void WatchPump::Wake() {
  {
    MutexLock lock(&mutex_);
    woken_ = true;
  }
  changed_.Signal();
}

void WatchPump::Release(const std::shared_ptr<Watch>& watch) {
  {
    MutexLock lock(&mutex_);
    beginning_.erase(watch);
    woken_ = true;  // a turn drops it from the queues
  }
  changed_.Signal();
}

void WatchPump::PassSlowBy() {
  {
    MutexLock lock(&mutex_);
    for (auto at = beginning_.begin(); at != beginning_.end();) {
      const int64_t before = std::exchange(at->second, at->first->reads());
      at = before == at->second || at->first->closed() ? beginning_.erase(at) : std::next(at);
    }
  }
  changed_.Signal();
}

void WatchPump::Run(std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.Signal();
}

void WatchPump::Settle() {
  // Shared: the task may still use it when the wait is over.
  const auto reached = std::make_shared<std::promise<void>>();
  Run([reached] { reached->set_value(); });
  reached->get_future().wait();
}

WatchPump::Watches WatchPump::TakeTurn() {
  const bool begins = begun_.empty() && MayBegin();
  Watches& beginnings = begins ? fresh_ : begun_;
  const bool ready = beginnings.empty() || (ready_next_ && !ready_.empty());
  Watches& queue = ready ? ready_ : beginnings;
  ready_next_ = !ready;
  Watches turn;
  if (!queue.empty()) turn.splice(turn.end(), queue, queue.begin());
  if (begins && !ready && !turn.front()->closed()) beginning_.emplace(turn.front(), -1);
  return turn;
}

void WatchPump::Serve() {
  // Affects this thread only; neither changes nor reports wait for it.
  const int nice = std::min(getpriority(PRIO_PROCESS, 0) + kNicer, kNicest);
  if (setpriority(PRIO_PROCESS, 0, nice) != 0) {
    Log(LogLevel::kWarning, "watches are served at ordinary priority: setpriority failed");
  }
  mutex_.Lock();
  while (true) {
    while (!HasWork()) changed_.Wait(&mutex_);
    if (!tasks_.empty()) {
      std::vector<std::function<void()>> tasks = std::exchange(tasks_, {});
      mutex_.Unlock();
      for (const auto& task : tasks) task();
      tasks.clear();
      mutex_.Lock();
      continue;
    }
    if (closing_) break;
    if (std::exchange(woken_, false)) ready_.splice(ready_.end(), waiting_);
    Watches turn = TakeTurn();
    if (turn.empty()) continue;
    mutex_.Unlock();
    // A notified reader asks again after it has taken a message.
    if (turn.front()->closed()) {
      turn.clear();
    } else if (turn.front()->HasNext()) {
      turn.front()->set_waits_for_turn(false);
      turn.front()->Notify();
      turn.clear();
    }
    mutex_.Lock();
    waiting_.splice(waiting_.end(), turn);
  }
  mutex_.Unlock();
}

bool WatchPump::HasWork() const {
  return closing_ || woken_ || !tasks_.empty() || !ready_.empty() || !begun_.empty() || MayBegin();
}

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
  MutexLock lock(&mutex_);
  if (watches_.size() >= limits_.watches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("watches: ", watches_.size(), " are open; allowed: ", limits_.watches));
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
    MutexLock lock(&mutex_);
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
    MutexLock lock(&mutex_);
    watches.assign(watches_.begin(), watches_.end());
    pass_by = now_ms - passed_by_ms_ >= kSlowMs;
    if (pass_by) passed_by_ms_ = now_ms;
  }
  if (pass_by) pump_.PassSlowBy();
  for (const auto& watch : watches) {
    // The reader is notified even while one of its writes is blocked.
    if (watch->CutIfStalled(now_ms, limits_.stall_ms)) pump_.RequestTurn(watch);
  }
}

WatchHub::Counts WatchHub::Count() const {
  MutexLock lock(&mutex_);
  return {watches_.size(), waits_.size()};
}

bool WatchHub::IsWatched(const std::string& job) const {
  MutexLock lock(&mutex_);
  return of_all_ > 0 || watched_.contains(job);
}

void WatchHub::Publish(int64_t sequence, std::vector<WatchLog::Entry> entries) {
  const bool any = !entries.empty();
  log_->Append(sequence, std::move(entries));
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
  MutexLock lock(&mutex_);
  if (waits_.size() >= limits_.waits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("waits: ", waits_.size(), " are open; allowed: ", limits_.waits));
  }
  const int64_t number = next_wait_++;
  waits_[number] = {job, std::move(states), std::move(done)};
  waits_of_[job].insert(number);
  return number;
}

bool WatchHub::EndWait(int64_t number) {
  Waiting ended;  // destroyed without the lock: what `done` owns may call back
  MutexLock lock(&mutex_);
  const auto found = waits_.find(number);
  if (found == waits_.end()) return false;
  const auto of = waits_of_.find(found->second.job);
  of->second.erase(number);
  if (of->second.empty()) waits_of_.erase(of);
  ended = std::move(found->second);
  waits_.erase(found);
  return true;
}

void WatchHub::EndWaits(const std::string& job, v1::JobState state) {
  // Waits are answered in the hub's thread: there may be many, and later changes must not wait.
  std::vector<std::pair<Done, absl::Status>> over;
  {
    MutexLock lock(&mutex_);
    const auto of = waits_of_.find(job);
    if (of == waits_of_.end()) return;
    for (auto at = of->second.begin(); at != of->second.end();) {
      const auto wait = waits_.find(*at);
      std::optional<absl::Status> end = WaitOver(job, wait->second.states, state);
      if (!end) {
        ++at;
        continue;
      }
      over.emplace_back(std::move(wait->second.done), *std::move(end));
      waits_.erase(wait);
      at = of->second.erase(at);
    }
    if (of->second.empty()) waits_of_.erase(of);
  }
  if (over.empty()) return;
  pump_.Run([over = std::move(over)] {
    for (const auto& [done, status] : over) done(status);
  });
}

}  // namespace nibble

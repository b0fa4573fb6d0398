#include "server/controller/watch_pump.h"

#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

#include "server/controller/log.h"

namespace nibble {
namespace {

// Below the rest of the program: a tenth of the time of a thread that wants the same core.
constexpr int kNicer = 10;
constexpr int kNicest = 19;

}  // namespace

WatchPump::WatchPump() : thread_([this] { Serve(); }) {}

WatchPump::~WatchPump() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WatchPump::Ask(std::shared_ptr<Watch> watch) {
  watch->set_asked(true);
  Watches one = {std::move(watch)};
  {
    std::lock_guard lock(mutex_);
    const Watch::Phase phase = one.front()->phase();
    if (phase == Watch::Phase::kCaughtUp) beginning_.erase(one.front());
    Watches& queue = phase == Watch::Phase::kCaughtUp ? ready_
                     : phase == Watch::Phase::kBegun  ? begun_
                                                      : fresh_;
    queue.splice(queue.end(), one);
  }
  changed_.notify_one();
}

void WatchPump::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

void WatchPump::Release(const std::shared_ptr<Watch>& watch) {
  {
    std::lock_guard lock(mutex_);
    beginning_.erase(watch);
    woken_ = true;  // its turn lets go of it
  }
  changed_.notify_one();
}

void WatchPump::PassSlowBy() {
  {
    std::lock_guard lock(mutex_);
    for (auto at = beginning_.begin(); at != beginning_.end();) {
      const int64_t before = std::exchange(at->second, at->first->reads());
      at = before == at->second || at->first->closed() ? beginning_.erase(at) : std::next(at);
    }
  }
  changed_.notify_one();
}

void WatchPump::Run(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void WatchPump::Settle() {
  std::promise<void> reached;
  Run([&reached] { reached.set_value(); });
  reached.get_future().wait();
}

WatchPump::Watches WatchPump::TakeTurn() {
  const bool begins = begun_.empty() && MayBegin();
  Watches& beginnings = begins ? fresh_ : begun_;
  const bool news = beginnings.empty() || (news_next_ && !ready_.empty());
  Watches& queue = news ? ready_ : beginnings;
  news_next_ = !news;
  Watches turn;
  if (!queue.empty()) turn.splice(turn.end(), queue, queue.begin());
  if (begins && !news && !turn.front()->closed()) beginning_.emplace(turn.front(), -1);
  return turn;
}

void WatchPump::Serve() {
  // Of this thread alone; what it does is nobody's to wait for.
  const int nice = std::min(getpriority(PRIO_PROCESS, 0) + kNicer, kNicest);
  if (setpriority(PRIO_PROCESS, 0, nice) != 0) {
    Log(LogLevel::kWarning, "watches are served at ordinary priority: it cannot be lowered");
  }
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      return closing_ || woken_ || !tasks_.empty() || !ready_.empty() || !begun_.empty() ||
             MayBegin();
    });
    if (!tasks_.empty()) {
      std::vector<std::function<void()>> tasks;
      tasks.swap(tasks_);
      lock.unlock();
      for (const auto& task : tasks) task();
      tasks.clear();
      lock.lock();
      continue;
    }
    if (closing_) return;
    if (std::exchange(woken_, false)) ready_.splice(ready_.end(), waiting_);
    Watches turn = TakeTurn();
    if (turn.empty()) continue;
    lock.unlock();
    // Whoever is told asks again when he has taken a message.
    if (turn.front()->closed()) {
      turn.clear();
    } else if (turn.front()->HasNext()) {
      turn.front()->set_asked(false);
      turn.front()->Notify();
      turn.clear();
    }
    lock.lock();
    waiting_.splice(waiting_.end(), turn);
  }
}

}  // namespace nibble

#include "worker/trainer/data/prefetcher.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/trainer/data/batch.h"

namespace nibble {

Prefetcher::Prefetcher(Make make, int64_t first, int depth)
    : make_(std::move(make)),
      depth_(static_cast<size_t>(std::max(depth, 1))),
      next_number_(first),
      thread_([this] { Run(); }) {}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  taken_.notify_all();
  thread_.join();
}

void Prefetcher::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    taken_.wait(lock, [this] { return stop_ || ready_.size() < depth_; });
    if (stop_) return;
    const int64_t number = next_number_++;
    lock.unlock();
    absl::StatusOr<Batch> batch = make_(number);
    lock.lock();
    const bool good = batch.ok();
    ready_.push_back(std::move(batch));
    made_.notify_all();
    if (!good) return;
  }
}

absl::StatusOr<Batch> Prefetcher::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  made_.wait(lock, [this] { return !ready_.empty(); });
  if (!ready_.front().ok()) return ready_.front();
  absl::StatusOr<Batch> batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  taken_.notify_one();
  return batch;
}

}  // namespace nibble

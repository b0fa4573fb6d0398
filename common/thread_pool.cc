#include "common/thread_pool.h"

#include <sched.h>

namespace nibble {
namespace {

int AvailableProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int count = threads > 0 ? threads : AvailableProcessors();
  for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  wake_.SignalAll();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t tasks, absl::FunctionRef<void(int64_t, int)> task) {
  if (tasks <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  {
    MutexLock lock(&mutex_);
    task_ = &task;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    running_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  wake_.SignalAll();
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(i, 0);
  MutexLock lock(&mutex_);
  while (running_ > 0) done_.Wait(&mutex_);
}

void ThreadPool::Work(int thread) {
  int64_t seen = 0;
  while (true) {
    const absl::FunctionRef<void(int64_t, int)>* task;
    int64_t tasks;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && generation_ == seen) wake_.Wait(&mutex_);
      if (stop_) return;
      seen = generation_;
      task = task_;
      tasks = tasks_;
    }
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      (*task)(i, thread);
    }
    MutexLock lock(&mutex_);
    if (--running_ == 0) done_.Signal();
  }
}

}  // namespace nibble

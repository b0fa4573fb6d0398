// A thread that runs tasks in the order in which they were posted: for work that may wait for the
// disk and must not delay the thread that orders it.
//
// Ownership: owns the thread and the tasks. Thread-safety: all methods from any thread except that
// of the tasks; tasks run with no lock taken.
#ifndef NIBBLE_WORKER_AGENT_TASK_THREAD_H_
#define NIBBLE_WORKER_AGENT_TASK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "common/mutex.h"

namespace nibble {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Run(); }) {}
  ~TaskThread() { Stop(); }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Has no effect after Stop.
  void Post(std::function<void()> task) {
    const MutexLock lock(&mutex_);
    if (!stopping_) tasks_.push_back(std::move(task));
    changed_.Signal();
  }

  // Waits for the running task; later ones never run. Idempotent, from one thread.
  void Stop() {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.Signal();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> task;
      {
        const MutexLock lock(&mutex_);
        while (!stopping_ && tasks_.empty()) changed_.Wait(&mutex_);
        if (stopping_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_TASK_THREAD_H_

// A fixed set of threads that share loops of independent tasks.
//
// Which thread runs which task is not defined; callers keep results independent of it.
// Ownership: owns its threads; the destructor joins them.
// Thread-safety: one ParallelFor at a time per pool; it must not be called from inside a task.
#ifndef NIBBLE_COMMON_THREAD_POOL_H_
#define NIBBLE_COMMON_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/mutex.h"

namespace nibble {

class ThreadPool {
 public:
  // `threads` counts the caller of ParallelFor; 0 means one per processor this process may use.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(index, thread) for index in [0, tasks), each once, and returns when all have ended.
  // `thread` is in [0, threads()): tasks with the same one never overlap.
  void ParallelFor(int64_t tasks, absl::FunctionRef<void(int64_t index, int thread)> task);

 private:
  void Work(int thread);

  Mutex mutex_;
  CondVar wake_, done_;
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  const absl::FunctionRef<void(int64_t, int)>* task_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t tasks_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<int64_t> next_{0};
  std::vector<std::thread> workers_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_THREAD_POOL_H_

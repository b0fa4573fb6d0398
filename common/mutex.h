// Locks whose members clang's thread-safety analysis checks (ABSL_GUARDED_BY).
//
//   mutable Mutex mutex_;
//   std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
//   CondVar changed_;
//
//   const MutexLock lock(&mutex_);
//   while (tasks_.empty()) changed_.Wait(&mutex_);
//
// Not absl::Mutex, for two reasons. Its timed waits follow the wall clock in Debian's version, so
// that an operator who sets the clock back would stop the heartbeats (docs/decisions/0014); waits
// here follow the monotonic clock. And Debian's Abseil is not instrumented, so the thread sanitizer
// would report what absl::Mutex protects.
//
// Rules: a lock is never held while code of a caller runs (a callback, a watcher), nor during I/O
// that may wait for a disk or a peer, unless the lock exists to order that I/O, which its comment
// states.
//
// Thread-safety: all methods from any thread.
#ifndef NIBBLE_COMMON_MUTEX_H_
#define NIBBLE_COMMON_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace nibble {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  // Tells the analysis, in code that it cannot follow, that the caller holds the lock.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits release the mutex, which the caller holds, and take it again before they return. They may
// return early: the caller checks its condition in a loop.
class CondVar {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // Returns whether the deadline has passed.
  bool WaitUntil(Mutex* mutex, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::timeout;
  }
  // The same, after this time. Where the condition is checked in a loop, WaitUntil bounds the sum.
  bool WaitFor(Mutex* mutex, std::chrono::nanoseconds time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return WaitUntil(mutex, std::chrono::steady_clock::now() + time);
  }
  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_MUTEX_H_

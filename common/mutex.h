// Locks: Abseil's, whose members clang's thread-safety analysis checks (ABSL_GUARDED_BY), under
// names that also work with the thread sanitizer.
//
//   mutable Mutex mutex_;
//   std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
//   CondVar changed_;
//
//   MutexLock lock(&mutex_);
//   while (tasks_.empty()) changed_.Wait(&mutex_);
//
// Debian's Abseil is not instrumented, so the sanitizer would not see what absl::Mutex orders and
// would report data that a lock protects. Sanitized builds use the C++ library's locks instead,
// behind the part of Abseil's interface that is declared here; other parts do not compile there.
//
// Rules: a lock is never held while code of a caller runs (a callback, a watcher), nor during I/O
// that may wait for a disk or a peer, unless the lock exists to order that I/O and says so.
//
// Thread-safety: all methods from any thread.
#ifndef NIBBLE_COMMON_MUTEX_H_
#define NIBBLE_COMMON_MUTEX_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#ifndef __SANITIZE_THREAD__

namespace nibble {

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using CondVar = absl::CondVar;

}  // namespace nibble

#else

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace nibble {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
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

class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex* mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // True if the time passed before a signal came.
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
    return WaitWithDeadline(mutex, absl::Now() + timeout);
  }
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    std::cv_status status = std::cv_status::no_timeout;
    if (deadline == absl::InfiniteFuture()) {
      changed_.wait(lock);
    } else {
      const absl::Duration left = deadline - absl::Now();
      status = changed_.wait_for(lock, std::chrono::nanoseconds(absl::ToInt64Nanoseconds(left)));
    }
    lock.release();
    return status == std::cv_status::timeout;
  }
  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace nibble

#endif

#endif  // NIBBLE_COMMON_MUTEX_H_

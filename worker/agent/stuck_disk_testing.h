// A disk that does not answer, for tests of who waits for it.
//
// Ownership: tests own it, and destroy it after everything that writes to it. Thread-safety: all
// methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_STUCK_DISK_TESTING_H_
#define NIBBLE_WORKER_AGENT_STUCK_DISK_TESTING_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "common/files/files.h"
#include "common/mutex.h"

namespace nibble::agent_testing {

inline constexpr std::chrono::seconds kPatience(120);

// A disk whose writes to some paths wait until it is released, as one that takes long per fsync.
class StuckDisk : public DiskFaults {
 public:
  int BeforeWrite(const std::string& path, int64_t) override {
    const MutexLock lock(&mutex_);
    if (part_.empty() || path.find(part_) == std::string::npos) return 0;
    ++waiting_;
    changed_.SignalAll();
    while (!part_.empty()) changed_.Wait(&mutex_);
    --waiting_;
    return 0;
  }
  void AfterSync(const std::string&) override {}

  // From now on, writes to files that have `part` in their path wait.
  void Block(const std::string& part) {
    const MutexLock lock(&mutex_);
    part_ = part;
  }
  void Release() {
    const MutexLock lock(&mutex_);
    part_.clear();
    changed_.SignalAll();
  }
  bool AwaitBlockedWrite() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(&mutex_);
    while (waiting_ == 0 && !changed_.WaitUntil(&mutex_, until)) {
    }
    return waiting_ > 0;
  }
  // Whether a write waits now.
  bool IsBlocking() {
    const MutexLock lock(&mutex_);
    return waiting_ > 0;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string part_ ABSL_GUARDED_BY(mutex_);  // empty: nothing waits
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nibble::agent_testing

#endif  // NIBBLE_WORKER_AGENT_STUCK_DISK_TESTING_H_

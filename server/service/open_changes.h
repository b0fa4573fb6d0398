// The changes that wait until they are durable, so that a server that ends answers them. gRPC would
// end them as CANCELLED, which tells callers that they are not to be repeated.
//
// Ownership: shares the calls until they are answered. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_OPEN_CHANGES_H_
#define NIBBLE_SERVER_SERVICE_OPEN_CHANGES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "grpcpp/alarm.h"

namespace nibble {

// A change in progress. It is answered by the controller, by its deadline or by the server's end,
// whichever comes first.
struct ChangeCall {
  std::atomic<bool> answered = false;
  grpc::Alarm alarm;  // of the deadline; cancelled when the change is answered or the server ends
};

class OpenChanges {
 public:
  // Sets the call's alarm, whose `callback` is to call Remove. False: the server ends, and takes no
  // more changes.
  template <class Callback>
  bool Add(const std::shared_ptr<ChangeCall>& call, std::chrono::system_clock::time_point deadline,
           Callback callback) {
    const MutexLock lock(&mutex_);
    if (ending_) return false;
    calls_.insert(call);
    call->alarm.Set(deadline, std::move(callback));
    return true;
  }
  void Remove(const std::shared_ptr<ChangeCall>& call) {
    const MutexLock lock(&mutex_);
    calls_.erase(call);
    changed_.SignalAll();
  }
  // Waits for the answers, and cancels the alarms of those that have none after `grace_ms`. Returns
  // whether there were any.
  bool End(int64_t grace_ms) {
    const CondVar::Deadline until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(grace_ms);
    std::vector<std::shared_ptr<ChangeCall>> late;
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
      while (!calls_.empty() && !changed_.WaitUntil(&mutex_, until)) {
      }
      late.assign(calls_.begin(), calls_.end());
    }
    for (const auto& call : late) call->alarm.Cancel();
    return !late.empty();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<ChangeCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_OPEN_CHANGES_H_

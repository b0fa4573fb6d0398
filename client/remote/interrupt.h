// Ctrl-C while something is followed: the follower lets go, the job goes on.
//
// Ownership: the signals SIGINT and SIGTERM while it lives, and a thread. A second signal ends the
// process as it always does. Thread-safety: one at a time in a process.
#ifndef NIBBLE_CLIENT_REMOTE_INTERRUPT_H_
#define NIBBLE_CLIENT_REMOTE_INTERRUPT_H_

#include <signal.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace nibble {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool happened() const { return happened_; }
  // Until then, or it happens.
  void SleepFor(absl::Duration pause);

  // Calls `then` once it happens, at once where it has, from another thread; not after the Call is
  // gone. One at a time.
  class Call {
   public:
    Call(Interrupt& interrupt, std::function<void()> then);
    ~Call();

   private:
    Interrupt& interrupt_;
  };

 private:
  void Listen();

  std::array<int, 2> pipe_ = {-1, -1};
  struct sigaction before_int_ = {};
  struct sigaction before_term_ = {};
  std::atomic<bool> happened_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> then_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_INTERRUPT_H_

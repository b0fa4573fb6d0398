// Where the coordinator's time comes from: one clock, given to whoever needs it, so that tests move
// it by hand.
//
// Ownership: borrowed by its users, who it outlives. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_CONTROLLER_CLOCK_H_
#define NIBBLE_SERVER_CONTROLLER_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace nibble {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowUnixMs() const = 0;  // milliseconds since 1970
};

class SystemClock : public Clock {
 public:
  int64_t NowUnixMs() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

// Stands still unless moved.
class ManualClock : public Clock {
 public:
  explicit ManualClock(int64_t now_ms) : now_ms_(now_ms) {}
  int64_t NowUnixMs() const override { return now_ms_.load(); }
  void Advance(int64_t ms) { now_ms_.fetch_add(ms); }

 private:
  std::atomic<int64_t> now_ms_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CLOCK_H_

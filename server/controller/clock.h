// Where the coordinator's time comes from: one clock, given to whoever needs it, so that tests move
// it by hand. It reads two times, which no decision mixes:
//   NowUnixMs  the wall clock, for people: it is stored and shown, and may jump either way
//   SteadyMs   the monotonic clock, for every interval that is measured or enforced: leases,
//              back-offs, graces, rates. It says nothing outside this process: what is stored or
//              sent is a duration.
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
  virtual int64_t SteadyMs() const = 0;   // milliseconds since some moment; never goes back
};

class SystemClock : public Clock {
 public:
  int64_t NowUnixMs() const override { return Milliseconds(std::chrono::system_clock::now()); }
  int64_t SteadyMs() const override { return Milliseconds(std::chrono::steady_clock::now()); }

 private:
  template <class Time>
  static int64_t Milliseconds(Time time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  }
};

// Both times keep their values unless moved.
class ManualClock : public Clock {
 public:
  explicit ManualClock(int64_t now_unix_ms) : unix_ms_(now_unix_ms) {}
  int64_t NowUnixMs() const override { return unix_ms_.load(); }
  int64_t SteadyMs() const override { return steady_ms_.load(); }
  // Time passes.
  void Advance(int64_t ms) {
    unix_ms_.fetch_add(ms);
    steady_ms_.fetch_add(ms);
  }
  // Somebody sets the wall clock: no time passes.
  void JumpWall(int64_t ms) { unix_ms_.fetch_add(ms); }

 private:
  std::atomic<int64_t> unix_ms_;
  std::atomic<int64_t> steady_ms_{7'000'000};  // not that of the wall clock: who mixes them fails
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CLOCK_H_

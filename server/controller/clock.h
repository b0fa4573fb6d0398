// The coordinator's source of time: one clock, passed to its users, so that tests can move it. It
// reads two times, which no decision mixes:
//   NowUnixMs  the wall clock, for people: stored and shown; may jump either way
//   SteadyMs   the monotonic clock, for every interval that is measured or enforced: leases,
//              back-offs, graces, rates. It has no meaning outside this process: stored or sent are
//              only durations.
//
// Ownership: borrowed by its users; outlives them. Thread-safety: all methods.
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
  virtual int64_t SteadyMs() const = 0;   // milliseconds since some moment; monotonic
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
  // Far from the wall clock, so that code that mixes the two fails.
  std::atomic<int64_t> steady_ms_{7'000'000};
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CLOCK_H_

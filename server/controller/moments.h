// When what time decides about a job began, on this process's monotonic clock: back-offs, stops,
// launches, checkpoints. The state stores how long (durations) and, for people, about when; this
// says when to act. A wall clock that jumps moves none of it.
//
// A moment is that at which a job was first noted with what it is about: noting it as soon as it is
// durable makes the two the same, and after a restart of the coordinator every interval that had
// not ended is measured from its beginning again.
//
// Ownership: owns what it holds. Thread-safety: all methods; it calls nobody, so any lock may be
// held around it. States may be noted in any order: what a newer attempt has begun stays.
#ifndef NIBBLE_SERVER_CONTROLLER_MOMENTS_H_
#define NIBBLE_SERVER_CONTROLLER_MOMENTS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "server/state/state.h"

namespace nibble {

class Moments {
 public:
  struct OfJob {
    int64_t not_before_ms = 0;  // of a job without an attempt: the end of its back-off; 0: none
    int64_t stop_by_ms = 0;     // of a stopping attempt: the end of its grace; 0: it does not stop
    int64_t launched_ms = 0;    // of its attempt; 0: none lives
    int64_t checkpoint_ms = 0;  // of its attempt: its newest good checkpoint, or the launch
  };

  // Notes what is new about a job of `state`.
  OfJob Note(const State& state, const v1::JobRecord& job, int64_t now_ms);
  void Forget(const std::string& job);

 private:
  struct Known {
    int64_t ended = -1;  // attempt after which the job backs off
    int64_t not_before_ms = 0;
    int64_t attempt = 0;
    int64_t launched_ms = 0;
    int64_t grace_ms = 0;  // of `attempt`; 0: it does not stop
    int64_t stop_by_ms = 0;
    int64_t checkpoint_step = -1;
    int64_t checkpoint_ms = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Known> known_;  // guarded by mutex_
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_MOMENTS_H_

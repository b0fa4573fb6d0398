// Answers to changes of recipes that wait, for a bounded time, until ranks have switched: then they
// name the step that the ranks agreed on, not the one that was next when the ranks last reported.
//
// Ownership: owns the answers that wait. Thread-safety: all methods; it runs no answer, so any lock
// may be held around it. Whoever takes an answer runs it.
#ifndef NIBBLE_SERVER_CONTROLLER_SWITCH_ANSWERS_H_
#define NIBBLE_SERVER_CONTROLLER_SWITCH_ANSWERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

// Whether ranks can be expected to switch to the revision within `wait_ms`. `step_seconds`: of a
// step of the job; 0: not known.
bool SwitchIsNear(const State& state, const std::string& job, int64_t revision,
                  const LiveProgress& live, double step_seconds, int64_t wait_ms);

// From which step the revision holds: exact where ranks have switched; else the step that they were
// asked to, or the one after the step that they last reported to be making, whichever is later.
// `asked` where the revision has been superseded since. FailedPrecondition with the ranks' reason
// where they have refused it.
absl::StatusOr<int64_t> SwitchStep(const State& state, const std::string& job, int64_t revision,
                                   const LiveProgress& live, int64_t asked);

class SwitchAnswers {
 public:
  using Answer = std::function<void()>;

  // At `until_ms` at the latest the answer is due. False where none is to wait any more.
  [[nodiscard]] bool Add(const std::string& job, int64_t revision, int64_t until_ms, Answer answer);
  // Those of the job that wait for nothing any more.
  std::vector<Answer> TakeSettled(const State& state, const std::string& job);
  std::vector<Answer> TakeDue(int64_t now_ms);
  // All; from here on none waits.
  std::vector<Answer> Close();

 private:
  struct Waiting {
    int64_t revision = 0;
    int64_t until_ms = 0;
    Answer answer;
  };
  // Takes those for which `over` holds. With mutex_ held.
  template <class Over>
  std::vector<Answer> Take(std::multimap<std::string, Waiting>::iterator begin,
                           std::multimap<std::string, Waiting>::iterator end, Over over);

  std::mutex mutex_;
  // Guarded by mutex_.
  std::multimap<std::string, Waiting> waiting_;  // by job
  bool closed_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SWITCH_ANSWERS_H_

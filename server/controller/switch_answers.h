// Delayed answers to changes of recipes. They wait, for a bounded time, until ranks have switched:
// then they name the step that the ranks agreed on, not the one that was next in the ranks' last
// report.
//
// Ownership: owns the waiting answers. Thread-safety: all methods; it runs no answer, so any lock
// may be held around it. Callers run the answers that they take.
#ifndef NIBBLE_SERVER_CONTROLLER_SWITCH_ANSWERS_H_
#define NIBBLE_SERVER_CONTROLLER_SWITCH_ANSWERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

// Whether ranks can be expected to switch to the revision within `wait_ms`. `step_seconds`: the
// duration of a step; 0: unknown.
bool SwitchIsNear(const State& state, const std::string& job, int64_t revision,
                  const LiveProgress& live, double step_seconds, int64_t wait_ms);

// The first step under the revision. Exact if ranks have switched; otherwise the later of the
// requested step and the step after the one last reported. `requested` if the revision was
// superseded since. FailedPrecondition, with the ranks' reason, if they refused it.
absl::StatusOr<int64_t> SwitchStep(const State& state, const std::string& job, int64_t revision,
                                   const LiveProgress& live, int64_t requested);

class SwitchAnswers {
 public:
  using Answer = std::function<void()>;

  // The answer is due at `until_ms` at the latest. False after Close: the caller answers at once.
  [[nodiscard]] bool Add(const std::string& job, int64_t revision, int64_t until_ms, Answer answer);
  // The answers of the job whose revision is settled.
  std::vector<Answer> TakeSettled(const State& state, const std::string& job);
  std::vector<Answer> TakeDue(int64_t now_ms);
  // All answers; later ones do not wait.
  std::vector<Answer> Close();

 private:
  struct Waiting {
    int64_t revision = 0;
    int64_t until_ms = 0;
    Answer answer;
  };
  // Takes the answers for which `over` is true.
  template <class Over>
  std::vector<Answer> Take(std::multimap<std::string, Waiting>::iterator begin,
                           std::multimap<std::string, Waiting>::iterator end, Over over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::multimap<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // by job
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SWITCH_ANSWERS_H_

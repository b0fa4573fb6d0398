// The time of a step's parts, from events between them in the queue of the computation: nothing
// waits for a clock.
//
// A step's update is still running when its numbers are read, so its time is counted in the step
// that follows, which begins when the update ends.
//
// On a processor, ranks exchange within other parts, and the slowest makes the others wait there:
// that time is counted as kReduce, whatever part it was spent in.
//
// Ownership: borrows the backend; owns the events. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_STEP_TIMES_H_
#define NIBBLE_WORKER_TRAINER_LOOP_STEP_TIMES_H_

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"

namespace nibble {

enum class StepPart { kData, kWeights, kForward, kBackward, kReduce, kUpdate };
inline constexpr size_t kStepParts = 6;

struct StepSeconds {
  std::array<double, kStepParts> part = {};
  double operator[](StepPart which) const { return part[static_cast<size_t>(which)]; }
  double total() const;
};

class StepTimes {
 public:
  // `exchanged`: the seconds that the caller has spent in exchanges so far.
  StepTimes(Backend& backend, std::function<double()> exchanged)
      : backend_(backend), exchanged_(std::move(exchanged)) {}

  absl::Status Begin();
  // The work enqueued since the last call belongs to this part. The update comes last.
  absl::Status End(StepPart part);
  // Once the decision of the step has been read: its parts, with the update of the step before.
  absl::StatusOr<StepSeconds> Read();

  // One part of the step, in the order in which parts were enqueued; seconds after `origin`, an
  // event of the same queue.
  struct Span {
    StepPart part = StepPart::kData;
    double begin = 0, end = 0;
  };
  // The parts of the current step, its own update included: waits for it.
  absl::StatusOr<std::vector<Span>> Spans(const Event& origin);

 private:
  struct Marks {
    std::vector<std::unique_ptr<Event>> events;  // events[i + 1] is the end of parts[i]
    std::vector<double> exchanged;               // when events[i] was recorded
    std::vector<StepPart> parts;
  };
  absl::Status Mark();

  Backend& backend_;
  const std::function<double()> exchanged_;
  std::array<Marks, 2> marks_;  // of this step and of the one before
  size_t current_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_STEP_TIMES_H_

#include "worker/trainer/loop/step_times.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/status_macros.h"

namespace nibble {

double StepSeconds::total() const { return std::accumulate(part.begin(), part.end(), 0.0); }

absl::Status StepTimes::Mark() {
  Marks& marks = marks_[current_];
  if (marks.events.size() <= marks.parts.size()) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, backend_.NewEvent());
    marks.events.push_back(std::move(event));
  }
  marks.exchanged.resize(marks.parts.size());
  marks.exchanged.push_back(exchanged_());
  return backend_.compute().Record(*marks.events[marks.parts.size()]);
}

absl::Status StepTimes::Begin() {
  current_ = 1 - current_;
  marks_[current_].parts.clear();
  return Mark();
}

absl::Status StepTimes::End(StepPart part) {
  marks_[current_].parts.push_back(part);
  return Mark();
}

absl::StatusOr<StepSeconds> StepTimes::Read() {
  StepSeconds seconds;
  for (size_t set = 0; set < marks_.size(); ++set) {
    const Marks& marks = marks_[set];
    for (size_t i = 0; i < marks.parts.size(); ++i) {
      if ((marks.parts[i] == StepPart::kUpdate) == (set == current_)) continue;
      NIBBLE_ASSIGN_OR_RETURN(const double part,
                              backend_.SecondsBetween(*marks.events[i], *marks.events[i + 1]));
      const double exchanged = std::min(part, marks.exchanged[i + 1] - marks.exchanged[i]);
      seconds.part[static_cast<size_t>(marks.parts[i])] += part - exchanged;
      seconds.part[static_cast<size_t>(StepPart::kReduce)] += exchanged;
    }
  }
  return seconds;
}

absl::StatusOr<std::vector<StepTimes::Span>> StepTimes::Spans(const Event& origin) {
  const Marks& marks = marks_[current_];
  std::vector<Span> spans;
  for (size_t i = 0; i < marks.parts.size(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const double begin, backend_.SecondsBetween(origin, *marks.events[i]));
    NIBBLE_ASSIGN_OR_RETURN(const double end,
                            backend_.SecondsBetween(origin, *marks.events[i + 1]));
    spans.push_back({.part = marks.parts[i], .begin = begin, .end = end});
  }
  return spans;
}

}  // namespace nibble

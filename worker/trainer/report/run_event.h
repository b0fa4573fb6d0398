// The event log of a run (docs/reference/events.md) as exports read it: its lines, and which of
// them count.
//
// A run that ends and resumes appends to its log, beginning with another `start`, and repeats the
// steps after its checkpoint. Only the last figures of a step count. So a log is read twice: the
// first reading finds where the run resumed, the second one selects; nothing of its length is kept
// in memory.
//
// Ownership: values. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_RUN_EVENT_H_
#define NIBBLE_WORKER_TRAINER_REPORT_RUN_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"

namespace nibble {

struct RunEvent {
  std::string kind;  // "step"
  absl::Time time;
  int64_t step = -1;              // -1: the event has none
  nlohmann::ordered_json fields;  // all of the line
};

// InvalidArgument, with the beginning of the line, if it is not an event; FailedPrecondition if a
// newer schema describes it.
absl::StatusOr<RunEvent> ParseRunEvent(std::string_view line);

// The value of a field that is a number: JSON's, or one of the texts "nan", "inf" and "-inf". NaN
// if there is no such field.
double NumberOf(const RunEvent& event, const std::string& field);
// Whether the event has the field, as a number in this sense or as true or false.
bool HasNumber(const RunEvent& event, const std::string& field);
// The inverse of FigureEventText() (event_log.h): sets the message's figures from the event's
// fields. Those that the event lacks, or has with another type, keep their values.
void ReadFigures(const RunEvent& event, google::protobuf::Message& figures);

struct FigureSelection {
  bool steps = true;
  bool validation = false;
  bool precision = false;
  int64_t from_step = 0;
  int64_t to_step = std::numeric_limits<int64_t>::max();  // included
  int64_t every = 1;                                      // only multiples
};

class FigureFilter {
 public:
  explicit FigureFilter(const FigureSelection& selection) : selection_(selection) {}

  // The first reading, line by line.
  void Survey(const RunEvent& event);
  // The second reading, from the first line on: whether the event is selected. It may continue
  // beyond the end of the first reading, in a log that grows.
  bool Takes(const RunEvent& event);

 private:
  // least_[i]: the smallest first step of the i-th `start` event and those after it.
  std::vector<int64_t> least_;
  size_t started_ = 0;  // `start` events of the second reading
  const FigureSelection selection_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_RUN_EVENT_H_

// The log of a run's events (events.h): a file of JSON lines, for programs.
//   {"schema":1,"event":"step","time":"2026-01-31T12:00:00.250Z","step":7,"loss":3.25,…}
//
// JSON has no NaN and no infinity: they are written as the strings "nan", "inf" and "-inf". Bytes
// that are not UTF-8 become U+FFFD. So every line is valid JSON.
//
// Ownership: an EventLog owns its file. Thread-safety: none; one writer.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_EVENT_LOG_H_
#define NIBBLE_WORKER_TRAINER_REPORT_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "worker/trainer/report/figure_event.h"

namespace nibble {

// The fields of one line, in order.
class EventLine {
 public:
  EventLine(std::string_view event, absl::Time time);
  ~EventLine();
  EventLine(const EventLine&) = delete;
  EventLine& operator=(const EventLine&) = delete;

  void Put(std::string_view name, const std::string& value);
  void Put(std::string_view name, const std::vector<std::string>& value);
  void Put(std::string_view name, int64_t value);
  void Put(std::string_view name, uint64_t value);
  void Put(std::string_view name, double value);
  void Put(std::string_view name, bool value);

  // One line, with its line feed.
  std::string Text() const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
};

// The line of an event whose fields are a message's figures (figure_event.h).
std::string FigureEventText(const google::protobuf::Message& figures, absl::Time time);

template <class Event>
std::string EventText(const Event& event, absl::Time time) {
  if constexpr (kIsFigureEvent<Event>) {
    return FigureEventText(event, time);
  } else {
    EventLine line(Event::kName, time);
    Event::Describe([&](std::string_view name, auto member, std::string_view, std::string_view) {
      line.Put(name, event.*member);
    });
    return line.Text();
  }
}

// The log's name in a run's output directory.
inline constexpr char kEventLogFile[] = "events.jsonl";

// Write() passes the whole event to the system before it returns, so that it survives the process,
// and a reader that follows the file sees whole lines. The file is not synced: the log is a record,
// not state. An existing log is appended to, after cutting off a partial line that a crash left. No
// partial line stays after an error.
//
// Events that cannot be written, for example because the disk is full, are kept in memory and
// written in order before the next event. Beyond kMostWaitingBytes the newest are lost; a LostEvent
// in their place records their number.
class EventLog {
 public:
  using Clock = std::function<absl::Time()>;

  // The path's directory exists. Errors name the path and the system's error.
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const std::string& path, Clock clock);

  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  static constexpr size_t kMostWaitingBytes = size_t{8} << 20;

  // An event of events.h. ResourceExhausted for a full disk, or another error of the system, with
  // the path; the event is then kept or lost, and the run can continue.
  template <class Event>
  absl::Status Write(const Event& event) {
    absl::Status status = Flush();
    std::string line = EventText(event, clock_());
    if (status.ok()) status = WriteLine(line);
    if (!status.ok()) Keep(std::move(line));
    return status;
  }
  // Tries to write the events kept in memory.
  absl::Status Flush();
  // The number of events that are not in the file: kept in memory or lost.
  int64_t missing() const { return static_cast<int64_t>(waiting_.size()) + lost_; }
  const std::string& path() const { return path_; }

 private:
  EventLog(std::string path, int file, bool regular, Clock clock)
      : path_(std::move(path)), file_(file), regular_(regular), clock_(std::move(clock)) {}

  absl::Status WriteLine(std::string_view line);
  void Keep(std::string line);
  absl::Status CutTornLine();

  const std::string path_;
  const int file_;
  const bool regular_;  // a regular file, which can be truncated
  const Clock clock_;
  bool torn_ = false;                // ends with a partial line that could not be cut off
  std::deque<std::string> waiting_;  // lines, oldest first
  size_t waiting_bytes_ = 0;
  int64_t lost_ = 0;  // events after the waiting ones
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENT_LOG_H_

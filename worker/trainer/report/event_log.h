// The log of a run's events: a file of JSON lines, one object a line (events.h), for programs.
//
// Every event is handed to the system whole before Write returns, so that it survives the process,
// and a reader that follows the file sees whole lines. It is not synced to disk: the log is a
// record, not state. A log that exists is appended to; what a crash left of a line at its end is
// cut off first. After an error no half line stays.
//
// Events that cannot be written, as the disk is full, wait in memory and are written, in their
// order, before the next one that can. Of more than kMostWaitingBytes the newest are lost; a
// LostEvent in their place says how many.
//
// Ownership: owns the file. Thread-safety: none; one writer.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/trainer/report/event_json.h"

namespace nibble {

// In a run's output directory.
inline constexpr char kEventLogFile[] = "events.jsonl";

class EventLog {
 public:
  using Clock = std::function<absl::Time()>;

  // The path's directory exists. Errors name the path and what the system said.
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const std::string& path, Clock clock);

  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  static constexpr size_t kMostWaitingBytes = size_t{8} << 20;

  // An event of events.h. ResourceExhausted for a full disk, and what else the system says, with
  // the path: the event waits, or is lost, and the run goes on.
  template <class Event>
  absl::Status Write(const Event& event) {
    absl::Status status = Flush();
    std::string line = EventText(event, clock_());
    if (status.ok()) status = WriteLine(line);
    if (!status.ok()) Keep(std::move(line));
    return status;
  }
  // Tries what waits.
  absl::Status Flush();
  // Events that are not in the file, waiting or lost.
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
  const bool regular_;  // has an end that can be cut
  const Clock clock_;
  bool torn_ = false;                // ends with half a line that could not be cut off
  std::deque<std::string> waiting_;  // lines, oldest first
  size_t waiting_bytes_ = 0;
  int64_t lost_ = 0;  // events after those that wait
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENT_LOG_H_

// An event as one line of JSON:
//   {"schema":1,"event":"step","time":"2026-01-31T12:00:00.250Z","step":7,"loss":3.25,…}
//
// JSON has no NaN and no infinity: they are written as the texts "nan", "inf" and "-inf". Bytes
// that are not UTF-8 become U+FFFD. So a line is valid JSON whatever the event holds.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_EVENT_JSON_H_
#define NIBBLE_WORKER_TRAINER_REPORT_EVENT_JSON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace nibble {

// Collects the fields of one line, in order.
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

  // With a line feed at the end and none before.
  std::string Text() const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
};

template <class Event>
std::string EventText(const Event& event, absl::Time time) {
  EventLine line(Event::kName, time);
  Event::Describe([&](std::string_view name, auto member, std::string_view, std::string_view) {
    line.Put(name, event.*member);
  });
  return line.Text();
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENT_JSON_H_

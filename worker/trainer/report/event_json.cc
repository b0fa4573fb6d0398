#include "worker/trainer/report/event_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "worker/trainer/report/events.h"

namespace nibble {

struct EventLine::Json {
  nlohmann::ordered_json object;
};

EventLine::EventLine(std::string_view event, absl::Time time) : json_(std::make_unique<Json>()) {
  json_->object["schema"] = kEventSchema;
  json_->object["event"] = std::string(event);
  json_->object["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

EventLine::~EventLine() = default;

void EventLine::Put(std::string_view name, const std::string& value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, const std::vector<std::string>& value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, int64_t value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, uint64_t value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, bool value) { json_->object[std::string(name)] = value; }
void EventLine::Put(std::string_view name, double value) {
  nlohmann::ordered_json& field = json_->object[std::string(name)];
  if (std::isfinite(value)) {
    field = value;
  } else {
    field = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
}

std::string EventLine::Text() const {
  return json_->object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace nibble

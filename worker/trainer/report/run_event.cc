#include "worker/trainer/report/run_event.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/figure_event.h"

namespace nibble {
namespace {

using EventJson = nlohmann::ordered_json;

constexpr size_t kShownBytes = 60;

absl::Status NoEvent(std::string_view line) {
  std::string shown(line.substr(0, kShownBytes));
  for (char& c : shown) {
    if (c < ' ') c = '?';
  }
  return absl::InvalidArgumentError(
      absl::StrCat("event log: '", shown, line.size() > kShownBytes ? "…" : "",
                   "' is not an event: a JSON object with the texts 'event' and 'time'"));
}

// The steps whose figures an event has; unset: it has none of a step.
std::optional<int64_t> StepOf(const RunEvent& event) {
  if (event.step < 0) return std::nullopt;
  // A validation counts the steps before it.
  return event.kind == ValidationEvent::kName ? event.step - 1 : event.step;
}

int64_t FirstStepOf(const RunEvent& start) {
  const auto found = start.fields.find("first_step");
  return found != start.fields.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::optional<double> NumberIn(const EventJson& fields, const std::string& field) {
  const auto found = fields.find(field);
  if (found == fields.end()) return std::nullopt;
  if (found->is_number()) return found->get<double>();
  if (found->is_boolean()) return found->get<bool>() ? 1 : 0;
  if (!found->is_string()) return std::nullopt;
  const std::string& text = found->get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace

absl::StatusOr<RunEvent> ParseRunEvent(std::string_view line) {
  RunEvent event;
  event.fields = EventJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.fields.is_object()) return NoEvent(line);
  const auto kind = event.fields.find("event");
  const auto time = event.fields.find("time");
  if (kind == event.fields.end() || !kind->is_string() || time == event.fields.end() ||
      !time->is_string()) {
    return NoEvent(line);
  }
  const auto schema = event.fields.find("schema");
  if (schema != event.fields.end() && schema->is_number_integer() &&
      schema->get<int64_t>() > kEventSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat("event log: schema ", schema->get<int64_t>(), "; this program reads up to ",
                     kEventSchema, ": use the `nibble` of the cluster's version"));
  }
  event.kind = kind->get<std::string>();
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, time->get<std::string>(), &event.time, &error)) {
    return NoEvent(line);
  }
  const auto step = event.fields.find("step");
  if (step != event.fields.end() && step->is_number_integer()) event.step = step->get<int64_t>();
  return event;
}

double NumberOf(const RunEvent& event, const std::string& field) {
  return NumberIn(event.fields, field).value_or(std::numeric_limits<double>::quiet_NaN());
}

bool HasNumber(const RunEvent& event, const std::string& field) {
  return NumberIn(event.fields, field).has_value();
}

void ReadFigures(const RunEvent& event, google::protobuf::Message& figures) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *figures.GetReflection();
  for (const FigureField& figure : FigureEventFields(*figures.GetDescriptor())) {
    const auto value = event.fields.find(figure.name);
    if (value == event.fields.end()) continue;
    switch (figure.field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        if (value->is_number_integer()) {
          reflection.SetInt64(&figures, figure.field, value->get<int64_t>());
        }
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (HasNumber(event, figure.name)) {
          reflection.SetDouble(&figures, figure.field, NumberOf(event, figure.name));
        }
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (value->is_boolean()) {
          reflection.SetBool(&figures, figure.field, value->get<bool>());
        }
        break;
      default:  // texts; figures have no other types
        if (value->is_string()) {
          reflection.SetString(&figures, figure.field, value->get<std::string>());
        }
        break;
    }
  }
}

void FigureFilter::Survey(const RunEvent& event) {
  if (event.kind != StartEvent::kName) return;
  const int64_t first = FirstStepOf(event);
  for (auto least = least_.rbegin(); least != least_.rend() && *least > first; ++least) {
    *least = first;
  }
  least_.push_back(first);
}

bool FigureFilter::Takes(const RunEvent& event) {
  if (event.kind == StartEvent::kName) {
    ++started_;
    return false;
  }
  const bool wanted = (event.kind == "step" && selection_.steps) ||
                      (event.kind == "precision" && selection_.precision) ||
                      (event.kind == ValidationEvent::kName && selection_.validation);
  const std::optional<int64_t> step = StepOf(event);
  if (!wanted || !step.has_value()) return false;
  if (event.step < selection_.from_step || event.step > selection_.to_step) return false;
  if (event.step % selection_.every != 0) return false;
  // started_: the number of the next `start` event.
  return started_ >= least_.size() || least_[started_] > *step;
}

}  // namespace nibble

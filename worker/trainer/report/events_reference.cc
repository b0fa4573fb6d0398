#include "worker/trainer/report/events_reference.h"

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/figure_event.h"

namespace nibble {
namespace {

constexpr char kIntroduction[] =
    R"(<!-- Made from worker/trainer/report/events.h:
     bazel run //worker/trainer/report:write_events_reference > docs/reference/events.md -->
# Events

A run writes its events to `events.jsonl` in its output directory (`output.directory` of its spec):
one JSON object per line, written when the event happens. A run that resumes from a checkpoint
appends, beginning with another `start`. Readers skip events and fields that they do not know.

Every line has
- `schema`: )";

constexpr char kCommon[] =
    R"(, the version of this page. It grows when a field changes its meaning or is removed;
- `event`: one of those below;
- `time`: when the event was written, UTC, `2026-01-31T12:00:00.250Z`.

Numbers that JSON cannot express are texts: `"nan"`, `"inf"`, `"-inf"`. Steps count from 0.
)";

template <class T>
std::string_view TypeName() {
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of texts";
  return "whole number";
}

std::string_view TypeName(const google::protobuf::FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
      return TypeName<double>();
    case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
      return TypeName<bool>();
    case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
      return TypeName<std::string>();
    default:
      return TypeName<int64_t>();
  }
}

void AddHead(const std::string& name, const std::string& meaning, std::string& out) {
  absl::StrAppend(&out, "\n## ", name, "\n", meaning,
                  "\n\n| field | type | unit | meaning |\n|---|---|---|---|\n");
}

void AddRow(const std::string& name, const std::string& type, const std::string& unit,
            const std::string& meaning, std::string& out) {
  absl::StrAppend(&out, "| `", name, "` | ", type, " | ", unit, " | ");
  absl::StrAppend(&out, meaning, " |\n");
}

template <class Event>
void AddEvent(std::string& out) {
  if constexpr (kIsFigureEvent<Event>) {
    const v1::EventKind& kind = FigureEventKind(*Event::descriptor());
    AddHead(kind.name(), kind.meaning(), out);
    for (const FigureField& figure : FigureEventFields(*Event::descriptor())) {
      AddRow(figure.name, std::string(TypeName(*figure.field)), figure.option->unit(),
             figure.option->meaning(), out);
    }
  } else {
    AddHead(Event::kName, Event::kMeaning, out);
    Event::Describe([&out]<class T>(std::string_view name, T Event::*, std::string_view unit,
                                    std::string_view meaning) {
      AddRow(std::string(name), std::string(TypeName<T>()), std::string(unit), std::string(meaning),
             out);
    });
  }
}

template <class... Events>
void AddEvents(const std::tuple<Events...>*, std::string& out) {
  (AddEvent<Events>(out), ...);
}

}  // namespace

std::string EventsReferenceMarkdown() {
  std::string out = absl::StrCat(kIntroduction, kEventSchema, kCommon);
  AddEvents(static_cast<const AllEvents*>(nullptr), out);
  return out;
}

}  // namespace nibble
